"""The final quality is not inferior to the baseline's, nor better than can be explained.

This is a test of non-inferiority with the margin that was fixed when the baseline was accepted. A result that is better
by more than the same margin is suspicious: leaked data, less data, or another evaluation.
"""

from __future__ import annotations

from dataclasses import replace

from bench.validate.checks.levels import level, looked_at, other_losses
from bench.validate.verdicts.findings import Case, Finding
from bench.validate.verdicts.verdict import verdict


def check(case: Case) -> Finding | None:
    """Return the claim about the seeds' final quality; FAIL if finished runs have none."""
    runs = looked_at(case.cell)
    if not runs or case.match is None:
        return None
    base = case.match.reference.metrics["quality"]
    name = runs[0].final.eval_metric
    claim = level("quality", case, base, [m.final.eval for m in runs], name)
    if claim is None or any(m.final.eval is None for m in runs):
        return verdict("FAIL", "quality", case.cell, f"no {name} was measured, or it is not finite")
    return replace(claim, aside=other_losses(case))
