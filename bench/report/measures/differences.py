"""Differences between two samples of seeds, with intervals: of results as they are, of speeds as ratios. Pure.

The interval of quality comes from the verdict, if there is one: nothing is judged here. Other intervals are Student's
with pooled variances, or Welch's if one side clearly scatters more; 95 %, two-sided. A seed counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.report.page import Page
from bench.results.cells import Cell, measured, solo_of
from bench.validate.statistics.significance import Moments, compare
from bench.validate.verdicts.verdict import Name, Verdict

TAIL = 0.025
"""Probability outside the interval, on each side."""
FLAT = 1e-9
"""Spread that counts as none: relative to the values, or to the other side's spread."""


@dataclass(frozen=True)
class MeanDifference:
    """Difference of two means, signed so that positive is better."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None where there are too few seeds for one."""
    high: float | None
    n: int
    n_base: int

    @property
    def decided(self) -> bool:
        """Whether zero is outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Quality:
    """A cell's final metric against its baseline, as `bench validate` compares them; without a verdict, against solo's."""

    cell: Cell
    difference: MeanDifference
    verdict: Name | None = None
    """Verdict of the check `quality`; None: there is no baseline, or none was given."""
    margin: float | None = None
    """Margin of the check: a result worse by less still counts as equally good; None as above."""
    own: bool = False
    """Whether the baseline is the cell's own, else solo's."""


def difference(
    base: Sequence[float | None], values: Sequence[float | None], higher_is_better: bool, resolution: float = 0.0
) -> MeanDifference | None:
    """Return the difference of the known values; None if a side has none. An interval needs two seeds on one side, and
    some spread or a resolution; a side of equal seeds leaves Welch's interval of the other's spread."""
    theirs, mine = measured(base), measured(values)
    if not theirs or not mine:
        return None
    if len(theirs) == 1 < len(mine):
        turned = difference(mine, theirs, not higher_is_better, resolution)
        return turned and replace(turned, n=len(mine), n_base=1)
    sign = 1.0 if higher_is_better else -1.0
    worse = [Moments.of([-sign * value for value in side]) for side in (theirs, mine)]
    gain = float(worse[0].mean - worse[1].mean) + 0.0
    spread = [0.0 if _equal(side) else float(moments.sd) for side, moments in zip((theirs, mine), worse, strict=True)]
    if len(theirs) < 2 or (resolution <= 0 and not any(spread)):
        return MeanDifference(0.0 if _equal([*theirs, *mine]) else gain, None, None, len(mine), len(theirs))
    before, now = (replace(m, sd=np.asarray(max(sd, FLAT * max(spread)))) for m, sd in zip(worse, spread, strict=True))
    low, high = compare(before, now, 0.0, resolution, either=True).bounds(TAIL)
    return MeanDifference(gain, -float(high), -float(low), len(mine), len(theirs))


def _equal(values: Sequence[float]) -> bool:
    """Return whether values differ by no more than rounding."""
    return math.isclose(min(values), max(values), rel_tol=FLAT)


def ratio(base: Sequence[float | None], values: Sequence[float | None]) -> MeanDifference | None:
    """Return the difference of mean logarithms, of positive values: its `exp` is the ratio of geometric means."""
    positive = [[math.log(value) for value in measured(side) if value > 0] for side in (base, values)]
    return difference(positive[0], positive[1], True)


def factor(logarithm: float) -> float:
    """Return the ratio with that logarithm; infinity if it is too large for a number."""
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf


def qualities(page: Page, cells: list[Cell], own: bool = True) -> list[Quality]:
    """Return the quality of each cell of one workload but solo: the figures of its verdict, else the comparison with
    the solo runs. Leaves out cells that have neither. `own`: whether the figures may be against the cell's own baseline,
    which say nothing of one device."""
    solo = solo_of(cells)
    known = [v for v in page.verdicts if v.check == "quality" and v.figures is not None and (own or not v.figures.own)]
    verdicts = {v.cell: v for v in known}
    rows = [_quality(cell, verdicts.get(cell.name), solo) for cell in cells if cell is not solo]
    return [row for row in rows if row is not None]


def _quality(cell: Cell, verdict: Verdict | None, solo: Cell | None) -> Quality | None:
    if verdict is not None and verdict.figures is not None:
        f = verdict.figures
        low, high = (None if math.isinf(bound) else bound for bound in (-f.high, -f.low))
        gap = MeanDifference(-f.worse + 0.0, low, high, f.seeds, f.base_seeds)
        return Quality(cell, gap, verdict.name, f.margin, f.own)
    if solo is None:
        return None
    sign = cell.about.final.higher_is_better
    theirs, mine = ([m.final.eval for m in side.one_each] for side in (solo, cell))
    apart = difference(theirs, mine, sign)
    return None if apart is None else Quality(cell, apart)
