"""The checks. Each is a function from a cell and the baseline to a verdict, or to None if it does not apply."""

from __future__ import annotations

from collections.abc import Callable

from bench.cells import Cell
from bench.validate.baseline import Baseline
from bench.validate.checks import breakdown, ledger, quality, status
from bench.validate.verdict import Verdict

CHECKS: dict[str, Callable[[Cell, Baseline], Verdict | None]] = {
    "status": status.check,
    "breakdown": breakdown.check,
    "ledger": ledger.check,
    "quality": quality.check,
}
"""Name -> check."""
