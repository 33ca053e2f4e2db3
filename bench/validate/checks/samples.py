"""As few samples to the target as the same cell needed before. Not held against solo: a larger global batch needs more."""

from __future__ import annotations

from bench.validate.checks.levels import level, looked_at
from bench.validate.findings import Case, Finding
from bench.validate.target_crossing import samples_to


def check(case: Case) -> Finding | None:
    """Return the claim about the logarithms over the seeds; a seed that missed the target needed more than any other."""
    reference = case.own
    if reference is None or reference.samples is None:
        return None
    base, target = reference.samples
    values = [samples_to(m, target) for m in looked_at(case.cell)]
    return level("samples", case, base, values, f"samples to {reference.metric} {target:g}")
