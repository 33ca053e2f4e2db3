"""Common code of the checks of final values: which seeds they look at, and the text of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from bench.base import number_format
from bench.results.cells import Cell, Sample
from bench.results.schema import Metrics
from bench.validate.baselines.global_batch import global_batch
from bench.validate.baselines.reference import Metric
from bench.validate.statistics.losses import LOSSES
from bench.validate.statistics.rank_tests import limits, shift
from bench.validate.statistics.rates import upper
from bench.validate.statistics.significance import LOOKS, Moments, compare, detectable, look, power
from bench.validate.verdicts.findings import Case, LevelClaim


def trained(cell: Cell) -> list[Metrics]:
    """Return the metrics of the seeds of the present look, in order, of those that finished or diverged. A seed that
    diverged once counts as diverged, even if another run of it finished."""
    diverged = {run.metrics.seed: run.metrics for run in cell.runs if run.metrics.status == "diverged"}
    counted = [diverged.get(run.metrics.seed, run.metrics) for run in cell.counted]
    known = [m for m in counted if m.status in ("ok", "diverged")]
    return known[: look(len(known))]


def looked_at(cell: Cell) -> list[Metrics]:
    """Return the metrics of `trained` that finished."""
    return [m for m in trained(cell) if m.status == "ok"]


def level(check: str, case: Case, base: Metric, values: Iterable[float | None], label: str) -> LevelClaim | None:
    """Return the claim about `values`, one for each seed looked at; None if no seed has a value. A seed without a value
    (it never reached the target, or the value is not finite) counts as the worst possible, here and in the baseline."""
    given, seeds = list(values), trained(case.cell)
    known = [value for value in given if value is not None and _usable(base, value)]
    if not known:
        return None
    mine = [base.turned(value) for value in known] + [math.inf] * (len(given) - len(known))
    theirs = [*base.turned_values, *[math.inf] * len(base.missed)]
    chance, _ = limits(tuple(base.turned_values), LOOKS[-1], base.margin)
    _, least = limits(tuple(base.turned_values), len(seeds), base.margin)
    reference = Sample.of(base.raw)
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


LABELS = {"eval_loss": "test loss", "train_loss": "training loss"}
"""Name of a loss -> its name in messages."""


def final_loss(check: str, case: Case) -> LevelClaim | None:
    """Return the claim about a final loss; None if the baseline has none, or has another global batch: half as many
    steps give another loss, and `quality` mentions it."""
    metric = _losses(case).get(check)
    if metric is None or not _same_batch(case):
        return None
    return level(check, case, metric, [LOSSES[check](m) for m in looked_at(case.cell)], LABELS[check])


def other_losses(case: Case) -> str:
    """Return the losses next to those of a baseline with another global batch, which are not judged, or why none are
    judged; empty: they are judged."""
    if not _losses(case):
        return "losses are not judged, as the baseline has none"
    if _same_batch(case):
        return ""
    parts = []
    for name, metric in _losses(case).items():
        sample, theirs = Sample.of([LOSSES[name](m) for m in looked_at(case.cell)]), Sample.of(metric.raw)
        if sample.mean is not None:
            beside = f"{_shown(sample, metric, theirs)}, solo {_shown(theirs, metric, theirs)}"
            parts.append(f"{LABELS[name]} {beside}")
    return f"{'; '.join(parts)}, not judged as the global batches differ" if parts else ""


def _losses(case: Case) -> dict[str, Metric]:
    kept = case.match.reference.metrics if case.match is not None else {}
    return {name: kept[name] for name in LOSSES if name in kept}


def _same_batch(case: Case) -> bool:
    assert case.match is not None, "compared with a reference"
    return case.match.own or global_batch(case.cell.about) == case.match.reference.batch_size


def timed(check: str, case: Case, base: Metric, values: Iterable[float | None], label: str) -> LevelClaim | None:
    """Return the claim about measurements of time, by Student's test: it can prove a loss from a few runs, and their
    noise is near enough to normal. None if a value is missing."""
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
    reference = Sample.of(base.raw)
    who = "baseline" if case.match.own else "solo"
    return f"{label} {_shown(known, base, reference, of)}, {who} {_shown(reference, base, reference)}"


def _plain(beside: float | None, difference: float) -> str:
    return number_format.metric(difference, beside) if math.isfinite(difference) else UNBOUNDED


def _rate(beside: float | None, value: float) -> str:
    return number_format.rate(value, beside)


def _relative(difference: float) -> str:
    return f"{math.expm1(difference):.1%}" if abs(difference) < 100 else UNBOUNDED


UNBOUNDED = "any"
"""How messages print a bound that too few seeds leave infinite."""


def _shown(sample: Sample, base: Metric, reference: Sample, of: str = "") -> str:
    number: Callable[[float], str] = partial(_rate if base.scale == "log" else _plain, reference.mean)
    assert sample.mean is not None
    spread = f" ± {number(sample.sd)}" if sample.sd is not None else ""
    return f"{number(sample.mean)}{spread} (n={sample.n}{of})"
