"""What the checks of final values have in common: the seeds of the look, and the words around a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from bench.base import figures
from bench.results.cells import Cell, Sample
from bench.results.schema import Metrics
from bench.validate.findings import Case, LevelClaim
from bench.validate.ranks import limits, shift
from bench.validate.rates import upper
from bench.validate.reference import Metric
from bench.validate.statistics import LOOKS, Moments, compare, detectable, look, power


def trained(cell: Cell) -> list[Metrics]:
    """Return the metrics of the seeds that the look is at, in their order: of those that finished or diverged. What diverged
    once has diverged, whatever another run of the seed came to."""
    diverged = {run.metrics.seed: run.metrics for run in cell.runs if run.metrics.status == "diverged"}
    counted = [diverged.get(run.metrics.seed, run.metrics) for run in cell.counted]
    known = [m for m in counted if m.status in ("ok", "diverged")]
    return known[: look(len(known))]


def looked_at(cell: Cell) -> list[Metrics]:
    """Return those of `trained` that finished."""
    return [m for m in trained(cell) if m.status == "ok"]


def level(check: str, case: Case, base: Metric, values: Iterable[float | None], label: str) -> LevelClaim | None:
    """Return the claim about `values`, one for each seed looked at; None if no seed has any. A seed without a value (never
    so far, or not finite) counts as the worst there is, here as in the baseline."""
    given, seeds = list(values), trained(case.cell)
    known = [value for value in given if value is not None and _usable(base, value)]
    if not known:
        return None
    mine = [base.turned(value) for value in known] + [math.inf] * (len(given) - len(known))
    theirs = [*base.turned_values, *[math.inf] * len(base.missed)]
    chance, _ = limits(tuple(base.turned_values), LOOKS[-1], base.margin)
    _, least = limits(tuple(base.turned_values), len(seeds), base.margin)
    reference = Sample.of([value.value for value in base.values])
    diverged = sum(m.status == "diverged" for m in seeds)
    return LevelClaim(
        check=check,
        case=case,
        what=_what(label, case, base, Sample.of(known), len(given)),
        comparison=shift(theirs, mine, base.margin),
        seeds=len(seeds),
        base_seeds=len(theirs),
        margin=base.margin,
        margin_why=base.margin_why,
        power=chance,
        detectable=least,
        show=_relative if base.scale == "log" else partial(_plain, reference.mean),
        note=f"{diverged} of {len(seeds)} seeds diverged, so at most {upper(diverged, len(seeds)):.0%} do (95 %)",
    )


def timed(check: str, case: Case, base: Metric, values: Iterable[float | None], label: str) -> LevelClaim | None:
    """Return the claim about measurements of one machine, by Student's test: of a few runs, it can prove a loss, and their
    noise is near enough to normal; None if one is missing."""
    given = list(values)
    known = [value for value in given if value is not None and _usable(base, value)]
    if not known or len(known) < len(given):
        return None
    moments = Moments.of(base.turned_values)
    comparison = compare(moments, Moments.of([base.turned(value) for value in known]), base.margin, base.resolution)
    spread = max(float(moments.sd), base.resolution / math.sqrt(12))
    return LevelClaim(
        check=check,
        case=case,
        what=_what(label, case, base, Sample.of(known), len(given)),
        comparison=comparison,
        seeds=len(known),
        base_seeds=len(base.values),
        margin=base.margin,
        margin_why=base.margin_why,
        power=float(power(base.margin / spread, LOOKS[-1], len(base.values))),
        detectable=float(detectable(comparison, base.margin, len(known))),
        show=_relative,
        only_proved=True,
    )


def _usable(base: Metric, value: float) -> bool:
    return math.isfinite(value) and (base.scale != "log" or value > 0)


def _what(label: str, case: Case, base: Metric, known: Sample, count: int) -> str:
    assert case.match is not None, "compared with a reference"
    every = len(case.cell.one_each)
    of = f", the first of {every}" if every > count else ""
    reference = Sample.of([value.value for value in base.values])
    who = "baseline" if case.match.own else "solo"
    return f"{label} {_shown(known, base, reference, of)}, {who} {_shown(reference, base, reference)}"


def _plain(beside: float | None, difference: float) -> str:
    return figures.metric(difference, beside) if math.isfinite(difference) else UNBOUNDED


def _relative(difference: float) -> str:
    return f"{math.expm1(difference):.1%}" if abs(difference) < 100 else UNBOUNDED


UNBOUNDED = "any"
"""A bound that so few seeds do not set."""


def _shown(sample: Sample, base: Metric, reference: Sample, of: str = "") -> str:
    number: Callable[[float], str] = "{:,.0f}".format if base.scale == "log" else partial(_plain, reference.mean)
    assert sample.mean is not None
    spread = f" ± {number(sample.sd)}" if sample.sd is not None else ""
    return f"{number(sample.mean)}{spread} (n={sample.n}{of})"
