"""Idle time of a cell's ranks by cause, as shares of their wall time, from `metrics.json` of all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.results.cells import Cell
from bench.results.schema import Metrics
from bench.results.schema_speed import IDLE_WHILE_PRESENT, IdleTime

KINDS = ("late rank", "orders", "bookkeeping", "short", "other")
"""Groups of causes, in the order in which they are stacked."""


@dataclass(frozen=True)
class IdleShares:
    """Idle shares of one rank of a cell, means over `n` finished runs."""

    cell: Cell
    n: int
    rank: int
    shares: dict[str, float]
    """Kind of cause -> fraction of the rank's wall time."""
    late: dict[int, float]
    """Rank that was waited for -> fraction of this rank's wall time."""
    longest_s: float
    longest: str
    """Cause of the longest gap of any run; empty: there was none."""

    @property
    def total(self) -> float:
        """All idle time, fraction of the wall time."""
        return sum(self.shares.values())


def idle(cells: Sequence[Cell]) -> dict[str, list[IdleShares]]:
    """Return cell name -> its ranks. Leaves out cells with one rank, and results without the causes of all ranks."""
    shares = {}
    for cell in cells:
        if runs := [m for m in cell.timed if m.timeline and len(m.time_s.rank_wall) > 1 and known(m)]:
            ranks = range(min(len(m.time_s.rank_wall) for m in runs))
            shares[cell.name] = [_rank(cell, runs, rank) for rank in ranks]
    return shares


def known(m: Metrics) -> bool:
    """Return whether the causes are known of all ranks: earlier versions knew none of ranks that joined later."""
    return not m.late or m.schema_version >= IDLE_WHILE_PRESENT


def _rank(cell: Cell, runs: list[Metrics], rank: int) -> IdleShares:
    shares, late = dict.fromkeys(KINDS, 0.0), dict[int, float]()
    longest, why = 0.0, ""
    for m in runs:
        wall = m.time_s.rank_wall[rank] * len(runs)
        for gap in (gap for gap in m.timeline.idle if gap.rank == rank) if m.timeline and wall else ():
            kind = _kind(gap)
            shares[kind] += gap.seconds / wall
            if kind == "late rank" and gap.by is not None:
                late[gap.by] = late.get(gap.by, 0.0) + gap.seconds / wall
            if gap.longest_s > longest:
                longest, why = gap.longest_s, gap.cause if gap.by is None else f"{gap.cause} {gap.by}"
    return IdleShares(cell, len(runs), rank, shares, late, longest, why)


def _kind(gap: IdleTime) -> str:
    kind = gap.cause.partition(":")[0]
    return kind if kind in KINDS else "other"
