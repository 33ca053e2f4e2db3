"""Speed at steady state, compared with what the ranks would do alone, both over the same stretch of one run.

`bench.results.schema_speed.Steady` has the definition. Each rank is measured between two of its reports. These come at
the end of a step, so the stretch contains whole steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.base.grouping import grouped
from bench.results.analysis.breakdown import CATEGORIES, categories, within
from bench.results.analysis.stream import Places, RunRecords, Slices
from bench.results.schema import Steady
from ddp.core.messages.events import Progress, RoundClosed
from ddp.core.messages.join_events import Joined

ROUNDS = 5
"""Rounds until the controller has settled."""
LEAST_STEPS = 20
"""Least number of steps of a rank in a stretch."""
LEAST_ROUNDS = 3
"""Least number of rounds in a stretch, if replicas are averaged in rounds."""
WORK = ("data", "compute")
STOPPED = ("eval", "checkpoint")
Reports = dict[int, list[Progress]]
"""Rank -> its reports in order of time."""


@dataclass(frozen=True)
class _RankStretch:
    """The measurements of one rank in the stretch."""

    samples: int
    seconds: float
    """Without evaluation and checkpoints."""
    busy: float
    apart: float
    """Seconds of waiting, communicating and copying snapshots."""


def steady(stream: RunRecords, world_size: int) -> Steady | None:
    """Return the speed at steady state; None if the run has no such stretch, or a too short one."""
    present = (stream.ready.keys() | {event.rank for event in stream.of(Joined)}) - stream.drops.keys()
    live = [rank for rank in range(world_size) if rank in present]
    reported = grouped((event.rank, event) for event in stream.of(Progress))
    stretch = _stretch(stream, reported, live)
    if stretch is None:
        return None
    category = categories(stream.slices)
    ranks = {rank: _measure(reported[rank], stream.slices, category, rank, *stretch) for rank in live}
    known = [rank for rank in ranks.values() if rank is not None]
    if len(known) < len(live):
        return None
    rate = sum(rank.samples / rank.seconds for rank in known)
    bound = sum(rank.samples / rank.busy for rank in known)
    return Steady(
        seconds=sum(rank.seconds for rank in known) / len(known),
        samples_per_s=rate,
        bound=bound,
        efficiency=rate / bound,
        waiting_or_communicating=[
            rank.apart / rank.seconds if (rank := ranks.get(number)) is not None else None
            for number in range(world_size)
        ],
    )


def _stretch(stream: RunRecords, reported: Reports, live: list[int]) -> tuple[float, float] | None:
    """Return (begin, end) in seconds on the clock of the records."""
    reports = [event for rank in live for event in reported[rank]]
    if not reports:
        return None
    settled = max([*stream.drops.values(), *(event.at for event in stream.of(Joined))], default=0.0)
    first = min(event.epoch for event in reports)
    begin = max(event.at for event in reports if event.epoch == first)
    end = min(max((event.at for event in reported[rank]), default=0.0) for rank in live)
    if stream.of(RoundClosed):
        rounds = [event.at for event in stream.of(RoundClosed) if event.at > settled]
        if len(rounds) < ROUNDS:
            return None
        begin = max(begin, rounds[ROUNDS - 1])
        inside = [at for at in rounds if begin <= at <= end]
        return (begin, inside[-1]) if len(inside) > LEAST_ROUNDS else None
    # With averaging inside steps no controller has to settle. After a loss or a join, a rank's first report still covers
    # that.
    for rank in live if settled else ():
        begin = max(begin, min((event.at for event in reported[rank] if event.at > settled), default=end))
    return (begin, end) if begin < end else None


def _measure(
    reported: list[Progress], slices: Slices, category: Places, rank: int, begin: float, end: float
) -> _RankStretch | None:
    """Measure a rank from its last report before `begin` to its last one before `end`; None if that is too short."""
    reports = [event for event in reported if event.at <= end]
    first = max((event.at for event in reports if event.at <= begin), default=begin)
    inside = [event for event in reports if event.at > first]
    if sum(event.steps for event in inside) < LEAST_STEPS:
        return None
    last = inside[-1].at
    times = _times(slices, category, rank, first, last)
    seconds = last - first - sum(times[name] for name in STOPPED)
    samples = sum(event.samples for event in inside)
    busy = times["busy"]
    apart = times["comm"] + times["wait"]
    return _RankStretch(samples, seconds, busy, apart) if samples and busy > 0 and seconds > 0 else None


def _times(slices: Slices, category: Places, rank: int, begin: float, end: float) -> dict[str, float]:
    """Return the seconds by category in [begin, end], and `busy`: work, plus the gaps between slices of what a rank
    does alone.

    A loop that only trains and evaluates continues directly with the next step, so such a gap is its own bookkeeping.
    """
    mine = slices.places(rank)
    mine = mine[(slices.stop[mine] > begin) & (slices.start[mine] < end)]
    start, stop, category = slices.start[mine].clip(begin, end), slices.stop[mine].clip(begin, end), category[mine]
    times = {name: float((stop - start)[within(category, (name,))].sum()) for name in CATEGORIES}
    work = within(category, WORK)
    own = work | within(category, STOPPED)
    between = np.maximum(start[1:] - stop[:-1], 0.0)[own[1:] & own[:-1]]
    times["busy"] = float((stop - start)[work].sum() + between.sum())
    return times
