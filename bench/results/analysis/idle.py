"""Idle gaps: spans in which a rank does nothing, each with its nearest cause. Pure arithmetic of slices.

A rank is busy while it computes, loads batches, copies, evaluates, writes checkpoints or communicates. A gap is a
maximal span of its wall time in which it is present and does none of these. So a rank's gaps add up to the `wait` and
`other` of `breakdown`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from bench.base.grouping import grouped
from bench.results.analysis.breakdown import CATEGORY, Spans, absences, wall_begin, wall_end
from bench.results.analysis.slices import EXPOSED
from bench.results.analysis.stream import RunRecords, Slices
from ddp.core.messages.commands import Drop, Join, Leave
from ddp.core.messages.events import AverageFailed, Failed, Lost
from ddp.core.messages.join_events import Joining
from ddp.core.rounds.rounds import IN_STEP

LEAST_S = 1e-3
"""Shorter gaps, seconds, are summed up, not listed."""
ABSENT = "absent"
"""What a rank does while the run goes on without it: that is no gap."""
NOBODY = -1
SHORT = "short"
"""Cause of gaps below `LEAST_S`. There are as many as steps, so no cause is determined."""
_NEXT = {
    "exchange": "orders: average",
    "copy": "orders: average",
    "join": "orders: new group",
    "evaluate": "orders: evaluation",
    "checkpoint": "orders: checkpoint",
}
"""Kind of the slice that follows a wait for orders -> cause of the gap; all other kinds mean orders to work."""


class Gap(NamedTuple):
    """A span in which a rank does nothing, seconds on the clock of the records."""

    rank: int
    start: float
    stop: float
    cause: str
    """`late rank` (waiting in a collective), `orders: ...` (waiting for orders, with what came then; after it
    was absent, the others' state), `fault`; of its own: `startup`, `end`, `bookkeeping`; `short` below `LEAST_S`."""
    by: int | None = None
    """The rank that was waited for, or that failed."""
    during: str = ""
    """What the late rank did meanwhile; empty: no rank was waited for."""

    @property
    def seconds(self) -> float:
        return self.stop - self.start


def gaps(stream: RunRecords) -> list[Gap]:
    """Return all gaps of all ranks that were ever present, sorted by rank and time."""
    if not stream.ready:
        return []
    present = sorted({*stream.ready, *(event.rank for event in stream.of(Joining))})
    away = absences(stream, present[-1] + 1)
    ranks = {rank: _RankSlices(stream, rank, away.get(rank, ())) for rank in present}
    late = last_arrivals(stream.slices) | last_arrivals(stream.behind)
    troubles = sorted(_troubles(stream))
    return [gap for rank in ranks.values() for gap in rank.gaps(ranks, late, troubles)]


def _troubles(stream: RunRecords) -> Iterator[tuple[float, int]]:
    """Yield (time, the rank that went wrong) of faults. A collective breaks on the ranks that are left, so none of them
    went wrong; if it breaks because ranks leave their group as ordered, it is no fault."""
    parting = False
    for at, record in stream.trouble:
        if isinstance(record, Leave | Join):
            parting = isinstance(record, Leave)
        elif isinstance(record, Failed | Lost | Drop):
            yield at, record.rank
        elif isinstance(record, AverageFailed) and not (parting and record.round == IN_STEP):
            yield at, NOBODY


def last_arrivals(s: Slices) -> dict[int, int]:
    """Return number of a collective -> the rank that arrived last."""
    mine = np.flatnonzero(s.kind == "exchange")
    mine = mine[np.argsort(s.start[mine], kind="stable")]
    return dict(zip(s.seq[mine].tolist(), s.rank[mine].tolist(), strict=True))


class _RankSlices:
    """The slices of one rank, and when it was absent, in order of time."""

    def __init__(self, stream: RunRecords, rank: int, away: Spans) -> None:
        self.rank = rank
        s, wire = stream.slices, stream.slices.wire_start
        mine = s.places(rank)
        self.begin, self.end = wall_begin(stream, rank), wall_end(stream, rank)
        left, back = np.array(away, np.float64).reshape(-1, 2).clip(self.begin, self.end).T
        start = np.concatenate([s.start[mine], left])
        order = np.argsort(start, kind="stable")
        self.start, self.wire = start[order], np.concatenate([wire[mine], left])[order]
        self.stop = np.concatenate([s.stop[mine], back])[order]
        self.kind = np.concatenate([s.kind[mine], np.full(left.size, ABSENT)])[order]
        self.seq = np.concatenate([s.seq[mine], np.full(left.size, -1)])[order]
        # For access one by one, lists are faster than arrays.
        self._starts, self._stops, self._kinds = self.start.tolist(), self.stop.tolist(), self.kind.tolist()

    def gaps(
        self, ranks: dict[int, _RankSlices], late: dict[int, int], troubles: list[tuple[float, int]]
    ) -> Iterator[Gap]:
        """Yield the gaps in the order of time."""
        busy = np.flatnonzero((self.kind != "wait") & (self.stop > self.begin) & (self.wire < self.end))
        begins = np.append(self.wire[busy], self.end).clip(self.begin, self.end)
        ends = np.maximum.accumulate(np.insert(self.stop[busy], 0, self.begin).clip(self.begin, self.end))
        waits = np.flatnonzero(self.kind == "wait")
        waited = np.concatenate([[0.0], np.cumsum(self.stop[waits] - self.start[waits])])
        idle = np.flatnonzero(begins > ends)
        starts, stops = ends[idle], begins[idle]
        ordered = waited[np.searchsorted(self.start[waits], stops)] - waited[np.searchsorted(self.start[waits], starts)]
        followed = np.append(busy, -1)[idle]
        columns = (array.tolist() for array in (idle, starts, stops, ordered, followed))
        for index, start, stop, orders, follows in zip(*columns, strict=True):
            if stop - start < LEAST_S:
                yield Gap(self.rank, start, stop, SHORT)
                continue
            after = None if follows < 0 else follows
            before = self._kinds[busy[index - 1]] if index else ""
            others = (ranks, late, troubles)
            yield Gap(self.rank, start, stop, *self._cause(start, stop, before, after, orders, others))

    def _cause(
        self, start: float, stop: float, before: str, after: int | None, orders: float, others: Any
    ) -> tuple[str, int | None, str]:
        """Return cause, rank and occupation of a gap. `before`: kind of the slice before it; `after`: the next slice;
        `orders`: seconds of waiting for orders."""
        ranks, late, troubles = others
        first, last = bisect_left(troubles, start, key=itemgetter(0)), bisect_right(troubles, stop, key=itemgetter(0))
        if first < last:
            return "fault", next((rank for _, rank in troubles[first:last] if rank != NOBODY), None), ""
        met = 0.0 if after is None else float(self.wire[after] - max(self._starts[after], start))
        if after is not None and self._kinds[after] == EXPOSED:  # the wait until that collective was on the wire
            met, orders = (0.0 if late[int(self.seq[after])] == self.rank else stop - start), 0.0
        own = stop - start - met - orders
        if after is not None and met >= max(orders, own) and self._kinds[after] in ("exchange", EXPOSED):
            by = late[int(self.seq[after])]
            return "late rank", by, ranks[by].doing(stop - met / 2) if by in ranks else "other"
        if before == ABSENT and after is not None:  # it was ready to join
            return "orders: state", None, ""
        if orders >= own:
            return ("orders: end" if after is None else _NEXT.get(self._kinds[after], "orders: work")), None, ""
        return ("end" if after is None else "bookkeeping" if before else "startup"), None, ""

    def doing(self, at: float) -> str:
        """Return the category of the slice at this time; `absent`; `other` if there is none."""
        index = bisect_right(self._starts, at) - 1
        if index < 0 or at > self._stops[index]:
            return "other"
        return ABSENT if self._kinds[index] == ABSENT else CATEGORY[self._kinds[index]]


def by_cause(every_gap: list[Gap]) -> list[dict[str, Any]]:
    """Return rows of (rank, cause, count, seconds, longest) by rank and cause."""
    sums = grouped(((gap.rank, gap.cause, gap.by), gap.stop - gap.start) for gap in every_gap)
    rows = [
        {"rank": rank, "cause": cause, "by": by, "count": len(each), "seconds": sum(each), "longest_s": max(each)}
        for (rank, cause, by), each in sums.items()
    ]
    return sorted(rows, key=lambda row: (row["rank"], -row["seconds"]))
