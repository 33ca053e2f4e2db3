"""MLPerf's reference-convergence-point rule, as its checker computes it; only on request (`--with rcp`). It never
decides a verdict of ours: it is one-sided, and passes runs that are six times slower
(`tests/bench/validate/statistics/test_validate_rcp.py`).

Source: mlcommons/logging, `rcp_checker`. It compares olympic means (without the lowest and the highest) of the samples
to the target. The largest plausible speed-up is the reference's mean divided by the smallest mean that a one-sided
pooled t-test at 5 % does not reject; both sides use the standard deviation of the untrimmed reference (ddof 0). A seed
that missed the target counts as 1e9 samples; more than one such seed fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

from bench.base import special
from bench.validate.statistics.target_crossing import samples_to
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict

LEVEL = 0.05
MISSED = 1e9
ALLOWED_MISSES = 1


def olympic(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest."""
    return fmean(sorted(values)[1:-1])


def least_mean(reference: Sequence[float], runs: int) -> float:
    """Return the smallest olympic mean of this many runs that is plausible. Raises ValueError below three values."""
    if len(reference) < 3 or runs < 3:
        raise ValueError("an olympic mean needs three values")
    n_reference, n_runs = len(reference) - 2, runs - 2
    spread = pstdev(reference) * math.sqrt(1 / n_reference + 1 / n_runs)
    return olympic(reference) - float(special.stdtrit(n_reference + n_runs - 2, 1 - LEVEL)) * spread


def passes(reference: Sequence[float], runs: Sequence[float]) -> bool:
    """Return whether the runs are not implausibly fast; slow runs always pass."""
    if sum(value >= MISSED for value in runs) > ALLOWED_MISSES:
        return False
    return olympic(runs) >= least_mean(reference, len(runs))


def check(case: Case) -> Verdict | None:
    """Return FAIL if the cell reaches its target too fast; None without its own baseline or below three seeds."""
    reference = case.own
    if reference is None or reference.samples is None:
        return None
    metric, target = reference.samples
    base = [value.value for value in metric.values]
    runs = [samples_to(m, target) or MISSED for m in case.cell.one_each]
    if len(runs) < 3 or len(base) < 3 or len(base) + len(runs) < 7:
        return None
    least = least_mean(base, len(runs))
    line = (
        f"olympic mean {olympic(runs):,.0f} samples to {reference.metric} {target:g}, reference {olympic(base):,.0f}, "
        f"at least {least:,.0f} (speed-up at most {olympic(base) / least:.3f})"
    )
    return verdict("PASS" if passes(base, runs) else "FAIL", "rcp", case.cell, line)
