"""Where each rank's wall time went, in fractions that sum to 1.

A rank's wall time runs from `Ready` to `Finished`; that of a rank that joins later begins when the others are ready. In
a collective, the time before the last rank arrives is waiting, and the rest is communication. A rank is `absent` while
the run goes on without it. Time that no slice covers is `other`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

import numpy as np

from bench.results.analysis.slices import EXPOSED
from bench.results.analysis.stream import Flags, Floats, Places, RunRecords, Slices
from bench.results.schema import RankTime
from ddp.core.messages.commands import Drop
from ddp.core.messages.join_events import Joining

Spans = Sequence[tuple[float, float]]
"""(begin, end) of stretches of time, seconds on the clock of the records."""
CATEGORY = {
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "slowdown": "compute",
    "data": "data",
    "exchange": "comm",
    EXPOSED: "comm",
    "join": "comm",
    "copy": "comm",
    "wait": "wait",
    "evaluate": "eval",
    "checkpoint": "checkpoint",
}
"""Kind of a slice -> category of its time. For an exchange this holds only for its time on the wire."""
CATEGORIES = ("compute", "data", "comm", "wait", "eval", "checkpoint")
GROSS = 0.01
"""Slices that overlap by more than this fraction of the wall time are a defect of the measurement, not rounding."""


def walls(stream: RunRecords, world_size: int, late: Collection[int] = ()) -> list[float]:
    """Return the wall time of each rank, seconds; [] if not all became ready. `late`: ranks that need not have become
    ready, as they joined later or never."""
    if not stream.ready or len(stream.ready) + len(late) < world_size:
        return []
    return [max(wall_end(stream, rank) - wall_begin(stream, rank), 0.0) for rank in range(world_size)]


def breakdown(stream: RunRecords, walls: list[float]) -> list[RankTime]:
    """Return how each rank spent its wall time; [] if there are no `walls`. Raises AssertionError if the slices of a
    rank overlap grossly."""
    slices = stream.slices
    category = categories(slices)
    waiting, away = slices.wire_start, absences(stream, len(walls))
    return [_rank(stream, rank, wall, category, waiting, away.get(rank, ())) for rank, wall in enumerate(walls)]


def absences(stream: RunRecords, world_size: int) -> Mapping[int, Spans]:
    """Return rank -> when the run went on without it: from the loss of the rank, or from the start of training if the
    rank joins later, until its next process is ready to join; infinite if none is. Ranks that were always present are
    left out."""
    begun = 0.0 if stream.begun is None else stream.begun
    since = {rank: begun for rank in range(world_size) if rank not in stream.ready}
    spans = defaultdict[int, list[tuple[float, float]]](list)
    for at, record in stream.moves:
        if isinstance(record, Drop):
            since.setdefault(record.rank, at)
        elif isinstance(record, Joining) and record.rank in since:
            spans[record.rank].append((since.pop(record.rank), record.at))
    for rank, at in since.items():
        spans[rank].append((at, inf))
    return spans


def seconds_in(rows: list[RankTime], walls: list[float], category: str) -> float:
    """Return the seconds in `category`, mean over ranks."""
    spent = [getattr(row, category) * wall for row, wall in zip(rows, walls, strict=True)]
    return float(np.mean(spent)) if spent else 0.0


def wall_begin(stream: RunRecords, rank: int) -> float:
    """Return when a rank became ready, or if it joined later, when the last of the others did."""
    if rank in stream.ready:
        return stream.ready[rank].at
    assert stream.begun is not None, "there are no walls if no rank became ready"
    return stream.begun


def wall_end(stream: RunRecords, rank: int) -> float:
    """Return when the wall time of a rank ends. A killed rank has not written its last slices, so its time ends before
    them; that of a rank that never joined ends with the last record of the others."""
    if rank in stream.drops and (mine := stream.slices.places(rank)).size:
        return float(stream.slices.stop[mine].max())
    if rank in stream.finished:
        return stream.finished[rank].at
    return stream.last_at[rank] if rank in stream.last_at else max(stream.last_at.values())


def categories(slices: Slices) -> Places:
    """Return the category of each slice, as an index into `CATEGORIES`. Raises AssertionError for an unknown kind."""
    kinds, codes = slices.kinds
    unknown = [kind for kind in kinds if kind not in CATEGORY]
    assert not unknown, f"slices of unknown kind: {unknown}"
    return np.array([CATEGORIES.index(CATEGORY[kind]) for kind in kinds], np.int64)[codes]


def within(category: Places, names: Collection[str]) -> Flags:
    """Return a mask of the slices in these categories; `category` is the result of `categories`."""
    return np.isin(category, [CATEGORIES.index(name) for name in names])


def _rank(
    stream: RunRecords, rank: int, wall: float, category: Places, waiting: Floats, away: Iterable[tuple[float, float]]
) -> RankTime:
    begin, end = wall_begin(stream, rank), wall_end(stream, rank)
    mine = stream.slices.places(rank)
    start, stop, wire = (np.clip(a[mine], begin, end) for a in (stream.slices.start, stream.slices.stop, waiting))
    seconds = np.bincount(category[mine], weights=stop - wire, minlength=len(CATEGORIES))
    seconds[CATEGORIES.index("wait")] += float((wire - start).sum())
    absent = sum(max(min(until, end) - max(since, begin), 0.0) for since, until in away)
    total = float(seconds.sum()) + absent
    _check_overlap(rank, start, stop, wall)  # slices are sorted by start
    whole = max(wall, total)
    shares = seconds / whole if whole > 0 else np.zeros(len(CATEGORIES))
    named = {name: float(share) for name, share in zip(CATEGORIES, shares, strict=True)}
    named["absent"] = absent / whole if whole > 0 else 0.0
    return RankTime(**named, other=max(0.0, 1.0 - sum(named.values())))


def _check_overlap(rank: int, start: Floats, stop: Floats, wall: float) -> None:
    overlap = float(np.maximum(stop[:-1] - start[1:], 0.0).sum())
    assert overlap <= GROSS * wall + 1e-3, f"slices of rank {rank} overlap by {overlap:.3f} s in {wall:.3f} s"
