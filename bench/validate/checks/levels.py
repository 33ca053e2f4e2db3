"""What the checks of means have in common: the seeds of the look, and the words around a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from bench.base import figures
from bench.results.cells import Cell, Sample
from bench.results.schema import Metrics
from bench.validate.findings import Case, LevelClaim
from bench.validate.reference import Metric
from bench.validate.statistics import Moments, compare, look


def looked_at(cell: Cell) -> list[Metrics]:
    """Return those of `Cell.one_each` that the look is at."""
    runs = cell.one_each
    return runs[: look(len(runs))]


def level(check: str, case: Case, base: Metric, values: Iterable[float | None], label: str) -> LevelClaim | None:
    """Return the claim about `values`, one for each seed looked at, None where a seed has none; None if no seed has any."""
    assert case.match is not None, "compared with a reference"
    given = list(values)
    known = [value for value in given if value is not None and math.isfinite(value)]
    if not known or (base.scale == "log" and min(known) <= 0):
        return None
    comparison = compare(
        base.moments, Moments.of([base.turned(value) for value in known]), base.margin, base.resolution
    )
    spread = max(float(base.moments.sd), base.resolution / math.sqrt(12))
    who = "baseline" if case.match.own else "solo"
    every = len(case.cell.one_each)
    of = f", the first of {every}" if every > len(given) else ""
    reference = Sample.of([value.value for value in base.values])
    return LevelClaim(
        check=check,
        case=case,
        what=f"{label} {_shown(Sample.of(known), base, reference, of)}, {who} {_shown(reference, base, reference)}",
        comparison=comparison,
        seeds=len(known),
        margin=base.margin,
        margin_why=base.margin_why,
        ratio=base.margin / spread,
        show=_relative if base.scale == "log" else partial(_plain, reference.mean),
        censored=len(given) - len(known),
    )


def _plain(beside: float | None, difference: float) -> str:
    return figures.metric(difference, beside)


def _relative(difference: float) -> str:
    return f"{math.expm1(difference):.1%}"


def _shown(sample: Sample, base: Metric, reference: Sample, of: str = "") -> str:
    number: Callable[[float], str] = "{:,.0f}".format if base.scale == "log" else partial(_plain, reference.mean)
    assert sample.mean is not None
    spread = f" ± {number(sample.sd)}" if sample.sd is not None else ""
    return f"{number(sample.mean)}{spread} (n={sample.n}{of})"
