"""In which respects a new baseline is weaker than the one that it replaces. Pure. `bench.validate.revisions.revision`
demands a reason."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bench.validate.baselines.reference import Metric, Reference
from bench.validate.statistics.significance import GATING_SEEDS, VARIANCE, Comparison, compare

NOT_SHOWN = 0.05
"""Level at which a new reference must be shown to be not inferior to the old one."""
GROWN = 1.01
"""Factor on the old margin beyond which a larger one is no rounding."""


def weaker(old: Reference, new: Reference) -> list[str]:
    """Return a few words for each respect in which `new` is weaker than `old`; []: it is at least as strict."""
    reasons = []
    if new.seeds < old.seeds:
        lost = f", and {GATING_SEEDS} make a gate" if old.gating and not new.gating else ""
        reasons.append(f"{new.seeds} seeds, {old.seeds} before{lost}")
    if len(new.diverged) > len(old.diverged):
        reasons.append(f"{len(new.diverged)} seeds that diverged, {len(old.diverged)} before")
    reasons += [f"no {name}, which it had" for name in _kept(old) if name not in _kept(new)]
    if old.sets and new.sets and (old.sets.training, old.sets.evaluated) != (new.sets.training, new.sets.evaluated):
        reasons.append("other data sets")
    if old.sets and new.sets and (new.sets.shared or 0) > (old.sets.shared or 0):
        reasons.append(f"{new.sets.shared} test samples that are trained, {old.sets.shared or 0} before")
    easier = old.target.value - new.target.value
    if (easier if old.metrics["quality"].higher_is_better else -easier) > 1e-9 * abs(old.target.value):
        reasons.append(f"a target that is reached sooner, {new.target.value:.4g}, {old.target.value:.4g} before")
    both = [name for name in old.metrics if name in new.metrics]
    return [*reasons, *(f"{name} {text}" for name in both for text in _metric(old.metrics[name], new.metrics[name]))]


def _kept(reference: Reference) -> list[str]:
    """Return the names of what a reference keeps for checks to compare."""
    curves = [f"curve of {name}" for name in reference.curves]
    recorded = [name for name, there in (("rates", reference.rates), ("data sets", reference.sets)) if there]
    return [*reference.metrics, *curves, *recorded]


def _metric(old: Metric, new: Metric) -> Iterator[str]:
    if (old.scale, old.higher_is_better, old.unit) != (new.scale, new.higher_is_better, new.unit):
        yield "is another measure"
        return
    if not as_good(old, new):
        yield "not shown to be as good"
    if not math.isclose(old.target or 0.0, new.target or 0.0, rel_tol=1e-9):
        yield f"has another target, {new.target}, {old.target} before"
    if len(new.missed) > len(old.missed):
        yield f"is missed by {len(new.missed)} seeds, by {len(old.missed)} before"
    if new.margin > GROWN * old.margin:
        yield f"has a larger margin, {new.margin:.4g}, {old.margin:.4g} before"
    if float(compared(old, new).p_variance) < VARIANCE:
        yield f"scatters more, sd {float(new.moments.sd):.4g}, {float(old.moments.sd):.4g} before"


def as_good(old: Metric, new: Metric) -> bool:
    """Return whether the new metric is shown to be not inferior to the old one, by the old margin."""
    return float(compared(old, new).p_noninferior) < NOT_SHOWN


def compared(old: Metric, new: Metric) -> Comparison:
    """Compare two independent samples. If either scatters more, their variances are not pooled."""
    return compare(old.moments, new.moments, old.margin, old.resolution, either=True)
