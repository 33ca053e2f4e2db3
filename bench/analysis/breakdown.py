"""Where each rank's wall time went, in fractions that sum to 1.

A rank's wall time runs from ready to finished. In a collective, time before the last arrival is waiting, the rest is on the
wire. What no slice covers is `other`.
"""

from __future__ import annotations

import numpy as np

from bench.analysis.stream import Floats, Slices, Stream
from bench.schema import RankTime

CATEGORY = {
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "slowdown": "compute",
    "data": "data",
    "exchange": "comm",
    "copy": "comm",
    "wait": "wait",
    "evaluate": "eval",
    "checkpoint": "checkpoint",
}
"""Kind of a slice -> where its time is booked; of an exchange, only its time on the wire."""
CATEGORIES = ("compute", "data", "comm", "wait", "eval", "checkpoint")
GROSS = 0.01
"""Slices that overlap by more than this fraction of the wall time are a defect of the measurement, not rounding."""


def breakdown(stream: Stream) -> list[RankTime]:
    """By rank, of those that became ready. Raises AssertionError if the slices of a rank overlap grossly."""
    slices = stream.slices
    category = _categories(slices)
    waiting = slices.wire_start()
    return [_rank(stream, rank, category, waiting) for rank in sorted(stream.ready)]


def seconds_in(rows: list[RankTime], category: str) -> float:
    """Seconds in `category`, mean over ranks."""
    return float(np.mean([getattr(row, category) * row.wall_s for row in rows])) if rows else 0.0


def _categories(slices: Slices) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    kinds, inverse = np.unique(slices.kind, return_inverse=True)
    unknown = [str(kind) for kind in kinds if str(kind) not in CATEGORY]
    assert not unknown, f"slices of unknown kind: {unknown}"
    index = np.array([CATEGORIES.index(CATEGORY[str(kind)]) for kind in kinds], np.int64)
    return index[inverse] if len(kinds) else np.zeros(0, np.int64)


def _rank(stream: Stream, rank: int, category: np.ndarray[tuple[int], np.dtype[np.int64]], waiting: Floats) -> RankTime:
    begin = stream.ready[rank].at
    end = stream.finished[rank].at if rank in stream.finished else stream.last_at[rank]
    mine = stream.slices.rank == rank
    start, stop, wire = (np.clip(a[mine], begin, end) for a in (stream.slices.start, stream.slices.stop, waiting))
    seconds = np.bincount(category[mine], weights=stop - wire, minlength=len(CATEGORIES))
    seconds[CATEGORIES.index("wait")] += float((wire - start).sum())
    total, wall = float(seconds.sum()), max(end - begin, 0.0)
    _check_overlap(rank, start, stop, wall)
    whole = max(wall, total)
    shares = seconds / whole if whole > 0 else np.zeros(len(CATEGORIES))
    named = {name: float(share) for name, share in zip(CATEGORIES, shares, strict=True)}
    return RankTime(rank=rank, wall_s=wall, **named, other=max(0.0, 1.0 - sum(named.values())))


def _check_overlap(rank: int, start: Floats, stop: Floats, wall: float) -> None:
    order = np.argsort(start, kind="stable")
    overlap = float(np.maximum(stop[order][:-1] - start[order][1:], 0.0).sum())
    assert overlap <= GROSS * wall + 1e-3, f"slices of rank {rank} overlap by {overlap:.3f} s in {wall:.3f} s"
