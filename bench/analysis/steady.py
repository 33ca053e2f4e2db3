"""Speed at steady state against what the ranks would do alone, both over the same stretch of the same run.

`bench.schema.Steady` says what is meant; this is how: each rank is measured from report to report, which come at the end of
a step, so that whole steps are held against exactly their time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.analysis.breakdown import CATEGORY
from bench.analysis.stream import Slices, Stream
from bench.schema import Steady

ROUNDS = 5
"""Rounds after which the controller has settled."""
LEAST_STEPS = 20
"""Fewest steps of a rank that make a stretch."""
LEAST_ROUNDS = 3
"""Fewest rounds of one, where replicas meet in rounds."""
WORK = ("data", "compute")
STOPPED = ("eval", "checkpoint")


@dataclass(frozen=True)
class _Rank:
    """One rank in its stretch."""

    samples: int
    seconds: float
    """Less evaluation and checkpoints."""
    busy: float
    apart: float
    """Waiting, on the wire, copying snapshots."""


def steady(stream: Stream, world_size: int) -> Steady | None:
    """None where the run has no such stretch, or it is too short."""
    live = [rank for rank in range(world_size) if rank not in stream.drops]
    stretch = _stretch(stream, live)
    if stretch is None:
        return None
    ranks = {rank: _measure(stream, rank, *stretch) for rank in live}
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


def _stretch(stream: Stream, live: list[int]) -> tuple[float, float] | None:
    """(begin, end) in seconds on the clock of the records."""
    reports = [event for event in stream.progress if event.rank in live]
    if not reports:
        return None
    settled = max(stream.drops.values(), default=0.0)
    begin = max(event.at for event in reports if event.epoch == min(event.epoch for event in reports))
    end = min(max((event.at for event in reports if event.rank == rank), default=0.0) for rank in live)
    if stream.closed:
        rounds = [event.at for event in stream.closed if event.at > settled]
        if len(rounds) < ROUNDS:
            return None
        begin = max(begin, rounds[ROUNDS - 1])
        inside = [at for at in rounds if begin <= at <= end]
        return (begin, inside[-1]) if len(inside) > LEAST_ROUNDS else None
    # Inside steps nothing has to settle; after a loss, the first report of a rank still covers it.
    for rank in live if stream.drops else ():
        begin = max(begin, min((e.at for e in reports if e.rank == rank and e.at > settled), default=end))
    return (begin, end) if begin < end else None


def _measure(stream: Stream, rank: int, begin: float, end: float) -> _Rank | None:
    """Between the rank's last reports before `begin` and `end`; None if that is too short."""
    reports = [event for event in stream.progress if event.rank == rank and event.at <= end]
    first = max((event.at for event in reports if event.at <= begin), default=begin)
    inside = [event for event in reports if event.at > first]
    if sum(event.steps for event in inside) < LEAST_STEPS:
        return None
    last = inside[-1].at
    times = _times(stream.slices, rank, first, last)
    seconds = last - first - sum(times.get(name, 0.0) for name in STOPPED)
    samples = sum(event.samples for event in inside)
    busy = times["busy"]
    apart = times.get("comm", 0.0) + times.get("wait", 0.0)
    return _Rank(samples, seconds, busy, apart) if samples and busy > 0 and seconds > 0 else None


def _times(slices: Slices, rank: int, begin: float, end: float) -> dict[str, float]:
    """Seconds by category in [begin, end], and `busy`: work, with the time between two slices of what a rank does alone.

    A loop that does nothing but train and evaluate goes from the end of a step right to the next one: what lies between is
    its own.
    """
    mine = np.flatnonzero((slices.rank == rank) & (slices.stop > begin) & (slices.start < end))
    mine = mine[np.argsort(slices.start[mine], kind="stable")]
    start, stop = slices.start[mine].clip(begin, end), slices.stop[mine].clip(begin, end)
    category = np.array([CATEGORY[kind] for kind in slices.kind[mine].tolist()], np.str_)
    times = {str(name): float((stop - start)[category == name].sum()) for name in set(category.tolist())}
    work = np.isin(category, WORK)
    own = work | np.isin(category, STOPPED)
    between = np.maximum(start[1:] - stop[:-1], 0.0)[own[1:] & own[:-1]]
    times["busy"] = float((stop - start)[work].sum() + between.sum())
    return times
