"""When each rank waited for which other rank: in collectives, for snapshots of a round, inside a backward pass.
Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.results.analysis.idle import last_arrivals
from bench.results.analysis.rank_seconds import Reasons
from bench.results.analysis.stream import Floats, Places, RunRecords, Slices
from bench.results.analysis.stretches import union
from ddp.core.messages.events import Progress, Snapshot

WAITING_FOR = "waiting for rank "
"""Prefix of the name of a part of a rank's seconds; the number of the rank that it waited for follows."""


def lateness(stream: RunRecords, slices: Slices) -> dict[int, Reasons]:
    """Return rank -> the ranks that it waited for, and when. `slices`: those of `stream`, perhaps after
    `with_arrivals`."""
    waits = defaultdict[tuple[int, int], list[tuple[float, float]]](list)
    for each in (slices, stream.behind):
        late, exchange = last_arrivals(each), np.flatnonzero(each.kind == "exchange")
        for place in exchange[each.wire_start[exchange] > each.start[exchange]].tolist():
            when = float(each.start[place]), float(each.wire_start[place])
            waits[int(each.rank[place]), late[int(each.seq[place])]].append(when)
    for came in _arrivals(stream):
        last = max(came, key=lambda rank: came[rank])
        for rank in came.keys() - {last}:
            waits[rank, last].append((came[rank], came[last]))
    ranks = defaultdict[int, list[tuple[str, tuple[Floats, Floats]]]](list)
    for (rank, by), pairs in sorted(waits.items()):
        both = np.array(pairs, np.float64)
        ranks[rank].append((f"{WAITING_FOR}{by}", union(both[:, 0], both[:, 1])))
    return dict(ranks)


def _arrivals(stream: RunRecords) -> Iterator[dict[int, float]]:
    """Yield, for each round of snapshots, when ranks finished their last steps before it, and when they made the
    snapshots."""
    reports = defaultdict[int, list[float]](list)
    for report in stream.of(Progress):
        reports[report.rank].append(report.at)
    rounds = defaultdict[int, list[Snapshot]](list)
    for event in stream.of(Snapshot):
        rounds[event.round].append(event)
    for events in rounds.values():
        trained = {event.rank: bisect_right(reports[event.rank], event.at) for event in events}
        if all(trained.values()):
            yield {rank: reports[rank][place - 1] for rank, place in trained.items()}
        yield {event.rank: event.at for event in events}


def with_arrivals(slices: Slices) -> Slices:
    """Return slices with an added exchange at the begin of each backward pass, for backends that exchange inside the
    pass without recording a collective. Until the last rank begins its pass, the others wait inside theirs.

    That time is a lower bound: a rank that also takes longer to its first bucket makes the others wait longer.
    """
    passes = {rank: mine[slices.kind[mine] == "backward"] for rank, mine in slices.by_rank.items()}
    passes = {rank: mine for rank, mine in passes.items() if mine.size}
    count = min((mine.size for mine in passes.values()), default=0)
    if len(passes) < 2 or not count:
        return slices
    table = np.array([mine[:count] for mine in passes.values()], np.int64)
    begins = slices.start[table].max(axis=0)
    start, mine = slices.start.copy(), table.ravel()
    cut = np.minimum(np.tile(begins, len(passes)), slices.stop[mine])
    start[mine] = cut
    numbers = np.tile(np.arange(1, count + 1), len(passes))
    return _extended(replace(slices, start=start), mine, slices.start[mine], cut, numbers)


def _extended(slices: Slices, mine: Places, start: Floats, stop: Floats, seq: Places) -> Slices:
    """Return slices with one more exchange for each of `mine`."""
    return Slices(
        np.concatenate([slices.rank, slices.rank[mine]]),
        np.concatenate([slices.kind.astype("U16"), np.full(mine.size, "exchange", "U16")]),
        np.concatenate([slices.start, start]),
        np.concatenate([slices.stop, stop]),
        np.concatenate([slices.seq, seq]),
        np.concatenate([slices.bytes, np.zeros(mine.size, np.int64)]),
    )
