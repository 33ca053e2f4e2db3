"""The time of every rank is accounted for: its fractions sum to 1."""

from __future__ import annotations

from bench.cells import Cell
from bench.exitcodes import Exit
from bench.reproduce import command
from bench.schema import RankTime
from bench.validate.baseline import Baseline
from bench.validate.verdict import Verdict

TOLERANCE = 0.001


def check(cell: Cell, baseline: Baseline) -> Verdict | None:
    """FAIL if the fractions of a rank do not sum to 1, or a rank of a finished run is missing."""
    if not cell.ok:
        return None
    name = cell.name
    missing = [m for m in cell.ok if len(m.breakdown) != m.world_size]
    off = max((abs(_total(rank) - 1) for m in cell.ok for rank in m.breakdown), default=0.0)
    line = f"the fractions of every rank sum to 1 within {off:.1g} (allowed: {TOLERANCE:g})"
    if off <= TOLERANCE and not missing:
        return Verdict("PASS", "breakdown", name, line, Exit.OK)
    if missing:
        line += f"; {len(missing)} runs lack ranks"
    return Verdict("FAIL", "breakdown", name, f"{line}; reproduce: {command(cell.runs)}", Exit.REGRESSION)


def _total(rank: RankTime) -> float:
    return rank.compute + rank.data + rank.comm + rank.wait + rank.eval + rank.checkpoint + rank.other
