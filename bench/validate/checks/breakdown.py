"""The time of every rank is accounted for: its fractions sum to 1."""

from __future__ import annotations

from bench.results.schema import RankTime
from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict

TOLERANCE = 0.001


def check(case: Case) -> Verdict | None:
    """FAIL if the fractions of a rank do not sum to 1, or a rank of a finished run is missing."""
    cell = case.cell
    if not cell.ok:
        return None
    missing = [m for m in cell.ok if len(m.breakdown) != m.world_size]
    off = max((abs(_total(rank) - 1) for m in cell.ok for rank in m.breakdown), default=0.0)
    line = f"the fractions of every rank sum to 1 within {off:.1g} (allowed: {TOLERANCE:g})"
    if off <= TOLERANCE and not missing:
        return verdict("PASS", "breakdown", cell, line)
    if missing:
        line += f"; {len(missing)} runs lack ranks"
    return verdict("FAIL", "breakdown", cell, line)


def _total(rank: RankTime) -> float:
    return rank.compute + rank.data + rank.comm + rank.wait + rank.eval + rank.checkpoint + rank.other
