"""Training takes the same course: the losses and evaluations of the epochs lie in the band of the same cell's baseline.

The band spans the baseline's seeds from the 10th to the 90th percentile, widened on both sides by a margin that was
fixed when the baseline was accepted. At least `INSIDE` of all points must lie in it. There is no comparison with solo,
as other batch sizes take another course.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.results.schema import Metrics
from bench.validate.baselines.reference import Curve
from bench.validate.checks.levels import looked_at
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict

INSIDE = 0.8
"""Fraction of the points that must lie inside the band."""


@dataclass(frozen=True)
class Course:
    """How many points of all runs lie outside of a band."""

    points: int
    worse: int
    better: int
    first: str
    """The first point outside of the band."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if too many points are worse than the band, SUSPICIOUS if better, INCONCLUSIVE if the baseline has
    too few seeds."""
    match, runs = case.match, looked_at(case.cell)
    if match is None or not match.own or not runs or not match.reference.curves:
        return None
    courses = {name: course(curve, name, runs) for name, curve in match.reference.curves.items()}
    name, worst = min(courses.items(), key=lambda item: _inside(item[1]))
    line = f"{name}: {_inside(worst):.0%} of the points in the band of {match.reference.seeds} seeds (at least {INSIDE:.0%})"
    line += f", {worst.worse} of {worst.points} points worse, {worst.better} better"
    if _inside(worst) >= INSIDE:
        return verdict("PASS", "curve", case.cell, line)
    line += f"; first at {worst.first}"
    if worst.better > worst.worse:
        return verdict("SUSPICIOUS", "curve", case.cell, f"{line}: too good, look for less data or another evaluation")
    if match.reference.gating:
        return verdict("FAIL", "curve", case.cell, line)
    line += f"; the baseline has {match.reference.seeds} seeds, 20 are needed to decide"
    return verdict("INCONCLUSIVE", "curve", case.cell, line)


def course(curve: Curve, name: str, runs: list[Metrics]) -> Course:
    """Compare `runs` with the band of `curve`, by epoch. A missing or non-finite value counts as worse than any
    other."""
    worse = better = points = 0
    first = ""
    for m in runs:
        rows = {row.epoch: getattr(row, name) for row in m.epochs}
        for epoch, (low, high, margin) in enumerate(zip(curve.q10, curve.q90, curve.margin, strict=True)):
            points += 1
            value = rows.get(epoch)
            above, below = (True, True) if value is None else (value > high + margin, value < low - margin)
            bad = value is None or (below if curve.higher_is_better else above)
            worse += bad
            better += (above or below) and not bad
            if (above or below) and not first:
                shown = "none" if value is None else f"{value:.4g}"
                first = f"epoch {epoch}, seed {m.seed}: {shown}, band {low - margin:.4g} to {high + margin:.4g}"
    return Course(points, worse, better, first)


def _inside(course: Course) -> float:
    return 1 - (course.worse + course.better) / max(course.points, 1)
