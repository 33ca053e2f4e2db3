"""Training reaches the target with as few samples as the same cell's baseline. There is no comparison with solo, as a
larger global batch needs more samples."""

from __future__ import annotations

from bench.validate.checks.levels import level, looked_at
from bench.validate.statistics.target_crossing import samples_to
from bench.validate.verdicts.findings import Case, Finding


def check(case: Case) -> Finding | None:
    """Return the claim about the logarithms of the samples; a seed that missed the target counts as needing more than
    any other."""
    reference = case.own
    if reference is None or reference.samples is None:
        return None
    base, target = reference.samples
    values = [samples_to(m, target) for m in looked_at(case.cell)]
    return level("samples", case, base, values, f"samples to {reference.metric} {target:g}")
