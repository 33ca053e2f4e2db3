"""As few samples to the target as the same cell needed before. Not held against solo: a larger global batch needs more."""

from __future__ import annotations

from bench.validate.checks.levels import level, looked_at
from bench.validate.crossing import samples_to
from bench.validate.findings import Case, Finding


def check(case: Case) -> Finding | None:
    """The claim about the mean logarithm over the seeds; a seed that missed the target has none."""
    match = case.match
    if match is None or not match.own or "samples_to_target" not in match.reference.metrics:
        return None
    base = match.reference.metrics["samples_to_target"]
    target = match.reference.target.value if base.target is None else base.target
    values = [samples_to(m, target) for m in looked_at(case.cell)]
    return level("samples", case, base, values, f"samples to {match.reference.metric} {target:g}")
