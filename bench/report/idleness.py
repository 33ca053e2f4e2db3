"""Idle time of the ranks of a run by cause, as shares of their wall time. From the records of the run: `bench.analysis` says
what a gap is and what caused it; this only decides which runs are worth reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.analysis.idle import by_cause, gaps
from bench.analysis.stream import sort
from bench.cells import Cell
from bench.runfolder import EVENTS, Run, read_records

BUDGET, LITTLE = 150_000_000, 15_000_000
"""Bytes of records that a report reads, little if there are many runs; cells beyond it are left out, and counted."""
KINDS = ("late rank", "orders", "bookkeeping", "short", "other")
"""What causes are summed up to, in the order in which they are stacked."""


@dataclass(frozen=True)
class Idle:
    """Of one rank, in one run."""

    cell: Cell
    seed: int
    rank: int
    shares: dict[str, float]
    """Kind of cause -> fraction of the rank's wall time."""
    late: dict[int, float] = field(default_factory=dict)
    """Rank that was waited for -> fraction of this rank's wall time."""
    longest_s: float = 0.0
    longest: str = ""
    """Cause of the longest gap."""

    @property
    def total(self) -> float:
        """All idle time, fraction of the wall time."""
        return sum(self.shares.values())


def idle(cells: Sequence[Cell], budget: int) -> tuple[dict[str, list[Idle]], int]:
    """Name of a cell -> its ranks, of its first finished run that has records; and how many cells the `budget`, bytes of
    records, left out.
    One rank waits for nobody: such cells are not looked at."""
    found: dict[str, list[Idle]] = {}
    spent = left_out = 0
    for cell in cells:
        run = next(_worth_reading(cell), None)
        if run is None:
            continue
        size = (run.path / EVENTS).stat().st_size
        if spent + size > budget:
            left_out += 1
            continue
        spent += size
        rows = _rows(cell, run)
        if rows:
            found[cell.name] = rows
    return found, left_out


def _worth_reading(cell: Cell) -> Iterator[Run]:
    for run in cell.runs:
        m = run.metrics
        if m.status == "ok" and m.world_size > 1 and m.time_s.rank_wall and (run.path / EVENTS).is_file():
            yield run


def _rows(cell: Cell, run: Run) -> list[Idle]:
    try:
        causes = by_cause(gaps(sort(list(read_records(run.path)), 0.0)))
    except (ValueError, OSError):  # the records of an older version, or cut short: metrics are what counts
        return []
    by_rank = defaultdict(list)
    for row in causes:
        by_rank[int(row["rank"])].append(row)
    walls = run.metrics.time_s.rank_wall
    return [_idle(cell, run, rank, by_rank[rank], walls[rank]) for rank in sorted(by_rank) if walls[rank] > 0]


def _idle(cell: Cell, run: Run, rank: int, rows: list[dict[str, object]], wall: float) -> Idle:
    shares = dict.fromkeys(KINDS, 0.0)
    late: dict[int, float] = {}
    longest, why = 0.0, ""
    for row in rows:
        cause, seconds, most, by = (
            str(row["cause"]),
            float(str(row["seconds"])),
            float(str(row["longest_s"])),
            row["by"],
        )
        kind = cause.partition(":")[0]
        shares[kind if kind in KINDS else "other"] += seconds / wall
        if kind == "late rank" and isinstance(by, int):
            late[by] = late.get(by, 0.0) + seconds / wall
            cause = f"late rank {by}"
        if most > longest:
            longest, why = most, cause
    return Idle(cell, run.metrics.seed, rank, shares, late, longest, why)
