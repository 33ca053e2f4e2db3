"""Finds a place for a word in a small plot, on no line and on no other word. Pure; lengths are typographic points.

Knows nothing of what lines and words mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Place = tuple[float, float]
Rectangle = tuple[float, float, float, float]
"""Left, low, right and high end."""
Track = NDArray[np.float64]
"""Places along a line, one a row."""
CLEAR = 2.0
"""What stays free around a word: half of a line, or of a mark."""
STEP = 0.5
"""Between two places of a track, at most."""
STRIDE = 2.0
"""Between two places that are tried."""
NEAREST = 250
"""How many of the free places are compared, those nearest to the end of the line."""
SOME = 32
"""How many places of a line a distance is measured to."""
RIVAL = 1.5
"""Cost of being nearer to another line than to its own, for each point."""


def track(line: Sequence[Place]) -> Track:
    """Return places along a line through points, so close that no word fits between two of them."""
    points = np.array(line, dtype=float).reshape(-1, 2)
    if len(points) < 2:
        return points
    length = np.concatenate([[0.0], np.hypot(*np.diff(points, axis=0).T).cumsum()])
    steps = np.linspace(0.0, length[-1], math.ceil(length[-1] / STEP) + 2)
    return np.stack([np.interp(steps, length, points[:, k]) for k in (0, 1)], axis=1)


def free_place(
    size: Place, ends: Track, own: Track, other: Track, obstacles: Sequence[Track], taken: list[Rectangle], plane: Place
) -> Place | None:
    """Return the centre of a free rectangle of a `size` in the `plane`, or None if there is none.

    It lies on none of the lines `own`, `other` and `obstacles` and on nothing `taken`: as near as may be to one of `ends`,
    and rather at its `own` line than at the `other`."""
    half = (size[0] / 2, size[1] / 2)
    if 2 * half[0] > plane[0] or 2 * half[1] > plane[1]:
        return None
    count = _counts([own, other, *obstacles], taken, plane)
    x, y = (np.linspace(half[k], plane[k] - half[k], int((plane[k] - size[k]) / STRIDE) + 2) for k in (0, 1))
    left, right = _cells(x - half[0] - CLEAR, x + half[0] + CLEAR, count.shape[0] - 1)
    low, high = _cells(y - half[1] - CLEAR, y + half[1] + CLEAR, count.shape[1] - 1)
    inside = count[right][:, high] - count[left][:, high] - count[right][:, low] + count[left][:, low]
    columns, rows = np.nonzero(inside == 0)
    spots = np.stack([x[columns], y[rows]], axis=1)
    if not len(spots):
        return None
    far = _away(spots, half, ends)
    nearest = np.argsort(far, kind="stable")[:NEAREST]
    spots, far = spots[nearest], far[nearest]
    cost = far + RIVAL * np.maximum(_away(spots, half, own) - _away(spots, half, other), 0.0)
    best = spots[int(np.argmin(cost))]
    return float(best[0]), float(best[1])


def _counts(tracks: Sequence[Track], taken: Sequence[Rectangle], plane: Place) -> NDArray[np.int64]:
    """Return for each corner of cells of one point how many places lie left of it and below."""
    shape = math.ceil(plane[0]) + 1, math.ceil(plane[1]) + 1
    marked = np.zeros(shape, dtype=np.int64)
    places = np.concatenate([each.reshape(-1, 2) for each in tracks])
    within = places[((places > -CLEAR) & (places < np.array(plane) + CLEAR)).all(axis=1)]
    columns, rows = (np.clip(np.floor(within[:, k]).astype(int), 0, shape[k] - 2) for k in (0, 1))
    marked[columns + 1, rows + 1] = 1
    for left, low, right, high in taken:
        (first, last), (bottom, top) = (
            (max(math.floor(ends[0]), 0), math.ceil(ends[1])) for ends in ((left, right), (low, high))
        )
        marked[first + 1 : last + 1, bottom + 1 : top + 1] = 1
    return marked.cumsum(axis=0).cumsum(axis=1)


def _cells(low: Track, high: Track, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first cells of intervals, and those after their last."""
    return np.clip(np.floor(low), 0, most).astype(int), np.clip(np.ceil(high), 0, most).astype(int)


def _away(spots: Track, half: Place, line: Track) -> NDArray[np.float64]:
    """Return how far rectangles around `spots` are from the nearest place of a line; infinite without any."""
    if not len(line):
        return np.full(len(spots), math.inf)
    some = np.concatenate([line[:: max(1, len(line) // SOME)], line[-1:]])
    x, y = (np.maximum(np.abs(spots[:, k, None] - some[None, :, k]) - half[k], 0.0) for k in (0, 1))
    return np.asarray(np.sqrt((x * x + y * y).min(axis=1)))
