"""The speed at steady state, as `bench.results.schema_speed.Steady` defines it, from reports and rounds alone.

The time of evaluations and checkpoints inside the stretch is known only together with other rests, so a speed has a
range.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure

SETTLED = 5
"""Rounds until the controller has settled."""
ROOM = 1e-3
"""Relative tolerance, as adjoining stretches may be cut at either end."""


def steady_range(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield the ranges of speed and length. Only for runs that lost no rank and were not resumed."""
    given = m.throughput.steady
    if given is None or m.faults or m.resumed is not None or m.world_size != len({e.rank for e in known.progress}):
        return
    first_epoch = min(event.epoch for event in known.progress)
    begin = max(event.at for event in known.progress if event.epoch == first_epoch)
    lasts = {event.rank: event.at for event in known.progress}
    end = min(lasts.values())
    if rounds := sorted(event.at for event in known.closed):
        begin = max([begin, *rounds[SETTLED - 1 : SETTLED]])
        end = max((at for at in rounds if begin <= at <= end), default=end)
    lengths, shortest, samples = [], [], []
    for rank in lasts:
        own = [event for event in known.progress if event.rank == rank and event.at <= end]
        start = max((event.at for event in own if event.at <= begin), default=begin)
        inside = [event for event in own if event.at > start]
        if not inside:
            return
        stop = inside[-1].at
        rest = sum(max(min(to, stop) - max(since, start), 0.0) for since, to in known.rests[rank])
        lengths.append(stop - start)
        shortest.append(max(stop - start - rest, ROOM * (stop - start)))
        samples.append(sum(event.samples for event in inside))
    slow, fast = (sum(n / s for n, s in zip(samples, each, strict=True)) for each in (lengths, shortest))
    yield _between("throughput.steady.samples_per_s", given.samples_per_s, slow, fast)
    yield _between(
        "throughput.steady.seconds", given.seconds, sum(shortest) / m.world_size, sum(lengths) / m.world_size
    )


def _between(name: str, recorded: float, low: float, high: float) -> Figure:
    return Figure(name, recorded, (low + high) / 2, (high - low) / 2 + ROOM * high)
