"""Where each rank's wall time went, in fractions that sum to 1.

A rank's wall time runs from `Ready` to `Finished`. In a collective, the time before the last rank arrives is waiting,
and the rest is communication. Time that no slice covers is `other`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bench.results.analysis.stream import Flags, Floats, Places, RunRecords, Slices
from bench.results.schema import RankTime

CATEGORY = {
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "slowdown": "compute",
    "data": "data",
    "exchange": "comm",
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


def walls(stream: RunRecords, world_size: int) -> list[float]:
    """Return the wall time of each rank, seconds; [] if not all became ready."""
    if len(stream.ready) < world_size:
        return []
    return [max(wall_end(stream, rank) - stream.ready[rank].at, 0.0) for rank in range(world_size)]


def breakdown(stream: RunRecords, walls: list[float]) -> list[RankTime]:
    """Return how each rank spent its wall time; [] if not all became ready. Raises AssertionError if the slices of a
    rank overlap grossly."""
    slices = stream.slices
    category = categories(slices)
    waiting = slices.wire_start
    return [_rank(stream, rank, wall, category, waiting) for rank, wall in enumerate(walls)]


def seconds_in(rows: list[RankTime], walls: list[float], category: str) -> float:
    """Return the seconds in `category`, mean over ranks."""
    spent = [getattr(row, category) * wall for row, wall in zip(rows, walls, strict=True)]
    return float(np.mean(spent)) if spent else 0.0


def wall_end(stream: RunRecords, rank: int) -> float:
    """Return when the wall time of a rank ends. A killed rank has not written its last slices, so its time ends before
    them."""
    if rank in stream.drops and (mine := stream.slices.places(rank)).size:
        return float(stream.slices.stop[mine].max())
    return stream.finished[rank].at if rank in stream.finished else stream.last_at[rank]


def categories(slices: Slices) -> Places:
    """Return the category of each slice, as an index into `CATEGORIES`. Raises AssertionError for an unknown kind."""
    kinds, codes = slices.kinds
    unknown = [kind for kind in kinds if kind not in CATEGORY]
    assert not unknown, f"slices of unknown kind: {unknown}"
    return np.array([CATEGORIES.index(CATEGORY[kind]) for kind in kinds], np.int64)[codes]


def within(category: Places, names: Collection[str]) -> Flags:
    """Return a mask of the slices in these categories; `category` is the result of `categories`."""
    return np.isin(category, [CATEGORIES.index(name) for name in names])


def _rank(stream: RunRecords, rank: int, wall: float, category: Places, waiting: Floats) -> RankTime:
    begin, end = stream.ready[rank].at, wall_end(stream, rank)
    mine = stream.slices.places(rank)
    start, stop, wire = (np.clip(a[mine], begin, end) for a in (stream.slices.start, stream.slices.stop, waiting))
    seconds = np.bincount(category[mine], weights=stop - wire, minlength=len(CATEGORIES))
    seconds[CATEGORIES.index("wait")] += float((wire - start).sum())
    total = float(seconds.sum())
    _check_overlap(rank, start, stop, wall)  # slices are sorted by start
    whole = max(wall, total)
    shares = seconds / whole if whole > 0 else np.zeros(len(CATEGORIES))
    named = {name: float(share) for name, share in zip(CATEGORIES, shares, strict=True)}
    return RankTime(**named, other=max(0.0, 1.0 - sum(named.values())))


def _check_overlap(rank: int, start: Floats, stop: Floats, wall: float) -> None:
    overlap = float(np.maximum(stop[:-1] - start[1:], 0.0).sum())
    assert overlap <= GROSS * wall + 1e-3, f"slices of rank {rank} overlap by {overlap:.3f} s in {wall:.3f} s"
