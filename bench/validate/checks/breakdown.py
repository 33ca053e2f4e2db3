"""The time of every rank is accounted for: its fractions sum to 1."""

from __future__ import annotations

from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict

FRACTIONS = ("compute", "data", "comm", "wait", "eval", "checkpoint", "other")
TOLERANCE = 0.001


def check(case: Case) -> Verdict | None:
    """Return FAIL if the fractions of a rank do not sum to 1, or a rank of a finished run is missing."""
    cell = case.cell
    if not cell.ok:
        return None
    missing = [m for m in cell.ok if len(m.breakdown) != m.world_size]
    totals = [sum(getattr(rank, name) for name in FRACTIONS) for m in cell.ok for rank in m.breakdown]
    off = max((abs(total - 1) for total in totals), default=0.0)
    line = f"the fractions of every rank sum to 1 within {off:.1g} (allowed: {TOLERANCE:g})"
    if off <= TOLERANCE and not missing:
        return verdict("PASS", "breakdown", cell, line)
    if missing:
        line += f"; {len(missing)} runs lack ranks"
    return verdict("FAIL", "breakdown", cell, line)
