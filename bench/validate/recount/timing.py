"""Where the time of a run went and how fast it was: the clock, speeds, each rank's breakdown, the cost of
communication."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from math import fsum
from operator import itemgetter
from statistics import median

import numpy as np

from bench.results.schema import Metrics
from bench.validate.records.run_records import Collective, Records
from bench.validate.recount.figure import Figure
from bench.validate.recount.learning import trained_until
from bench.validate.recount.steady import steady_range

SECOND = 1e-3
"""Tolerance of a time in seconds, as adjoining slices may be cut at either end."""
SHARE = 2e-3
"""The same for a fraction of a rank's time."""
COMPUTING = ("forward", "backward", "optimizer", "slowdown")
MEETING = ("exchange", "copy", "join")
FIELDS = ("compute", "data", "comm", "wait", "eval", "checkpoint")


def timing(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield the figures of times, speeds and fractions of time."""
    ready, done = ({event.rank: event.at for event in events} for events in (known.ready, known.finished))
    if len(ready) < m.world_size or len(done) < m.world_size:
        return
    walls = [done[rank] - ready[rank] for rank in range(m.world_size)]
    evaluating = fsum(event.seconds for event in known.evaluated) / m.world_size
    trained = trained_until(known, max(done.values()))
    yield Figure("time_s.rank_wall", m.time_s.rank_wall, walls, SECOND)
    yield Figure("time_s.eval", m.time_s.eval, evaluating, SECOND)
    yield Figure("time_s.train", m.time_s.train, trained, SECOND)
    if known.headers and known.ends:
        launched, ended = known.headers[-1].launched, known.ends[-1].at
        startup = max(ready.values()) - launched
        yield Figure("time_s.startup", m.time_s.startup, startup, SECOND)
        yield Figure("time_s.total", m.time_s.total, ended - launched, SECOND)
        rest = max(ended - launched - startup - trained - evaluating, 0.0)
        yield Figure("time_s.shutdown", m.time_s.shutdown, rest, SECOND)
    if m.timing and trained > 0:
        yield from _speeds(m, known, trained)
    if known.slices:
        yield from _breakdown(m, known, walls)


def _speeds(m: Metrics, known: Records, trained: float) -> Iterator[Figure]:
    samples, busy = defaultdict[int, int](int), defaultdict[int, float](float)
    for event in known.progress:
        samples[event.rank] += event.samples
        busy[event.rank] += event.busy_s
    speed, given = sum(samples.values()) / trained, m.throughput
    yield Figure("throughput.samples_per_s", given.samples_per_s, speed)
    yield Figure("throughput.per_rank", given.per_rank, [samples[rank] / trained for rank in range(m.world_size)])
    bound = fsum(samples[rank] / busy[rank] for rank in busy if busy[rank] > 0)
    if given.efficiency is not None and bound:
        yield Figure("throughput.efficiency", given.efficiency, speed / bound)
    if (steady := given.steady) is not None:
        yield Figure("throughput.steady.efficiency", steady.efficiency, steady.samples_per_s / steady.bound)
        yield from steady_range(m, known)
    if (work := m.work) is not None:
        for name, each in (("tokens", work.tokens_per_sample), ("flop", work.flop_per_sample)):
            yield Figure(f"work.{name}_per_s", getattr(work, f"{name}_per_s"), None if each is None else each * speed)


def _breakdown(m: Metrics, known: Records, walls: list[float]) -> Iterator[Figure]:
    late, met = lateness(known), exposed(known)
    for rank, row in enumerate(m.breakdown):
        took = {
            kind: known.seconds[rank, kind] for kind in (*COMPUTING, *MEETING, "data", "wait", "evaluate", "checkpoint")
        }
        seconds = [
            fsum(took[kind] for kind in COMPUTING),
            took["data"],
            fsum(took[kind] for kind in MEETING) - late[rank] + met[rank],
            took["wait"] + late[rank] - met[rank],
            took["evaluate"],
            took["checkpoint"],
        ]
        whole = max(walls[rank], fsum(seconds))
        shares = [each / whole if whole > 0 else 0.0 for each in seconds]
        shares.append(max(1.0 - fsum(shares), 0.0))
        given = [getattr(row, name) for name in (*FIELDS, "other")]
        yield Figure(f"breakdown[{rank}] ({', '.join(FIELDS)}, other)", given, shares, SHARE)
    saving = [known.seconds[rank, "checkpoint"] for rank in range(m.world_size)]
    yield Figure("time_s.checkpoint", m.time_s.checkpoint, fsum(saving) / m.world_size, SHARE * max(walls) + SECOND)


def lateness(known: Records) -> dict[int, float]:
    """Return rank -> seconds in collectives before the last rank arrived."""
    late = defaultdict[int, float](float)
    for each in known.collectives.values():
        last = max(begin for _, begin, _, _ in each)
        for rank, begin, end, _ in each:
            late[rank] += max(min(last, end) - begin, 0.0)
    return late


def exposed(known: Records) -> dict[int, float]:
    """Return rank -> seconds in which it waited for its own collectives that all ranks had reached."""
    wires = defaultdict[int, list[tuple[float, float]]](list)
    for each in known.hidden.values():
        last = max(begin for _, begin, _, _ in each)
        for rank, _, end, _ in each:
            wires[rank].append((last, end))
    met = defaultdict[int, float](float)
    for rank, waits in known.drained.items():
        left = deque(sorted(wires[rank], key=itemgetter(1)))
        for begin, end in sorted(waits):
            while left and left[0][1] <= end:
                since, until = left.popleft()
                met[rank] += max(until - max(since, begin), 0.0)
                begin = max(begin, until)
    return met


def meeting(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield the cost of communication, in rounds or in collectives inside steps."""
    sync = m.sync
    if known.closed:
        cost = [event.sync_s for event in known.closed]
        yield Figure("sync.count", sync.count, len(cost))
        if known.averaged:
            yield Figure("sync.bytes", sync.bytes, sum(event.bytes for event in known.averaged))
            apart = [value for event in known.closed for value in event.divergence]
            yield Figure("sync.divergence_p50", sync.divergence_p50, median(apart) if apart else None)
    elif known.collectives or known.hidden:
        groups = [*known.collectives.values(), *known.hidden.values()]
        cost = [_wire(each) for each in groups]
        yield Figure("sync.count", sync.count, len(cost))
        yield Figure("sync.bytes", sync.bytes, sum(size for each in groups for *_, size in each))
    else:
        yield Figure("sync.count", sync.count, 0)
        return
    for name, part in (("ms_p50", 50), ("ms_p95", 95)):
        yield Figure(f"sync.{name}", getattr(sync, name), 1e3 * float(np.percentile(cost, part)), 1e-3)


def _wire(each: list[Collective]) -> float:
    return max(max(end for _, _, end, _ in each) - max(begin for _, begin, _, _ in each), 0.0)
