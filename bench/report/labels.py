"""Where the labels of points stand, so that they lie on nothing. Pure; lengths are typographic points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Side = Literal["left", "right"]
LETTER, LINE = 4.8, 9.0
"""Width of a letter and height of a line, at a size of 8 points."""
SPOTS: tuple[tuple[float, float, Side], ...] = (
    (6, -10, "left"),
    (6, 4, "left"),
    (-6, 4, "right"),
    (-6, -10, "right"),
    (8, -20, "left"),
    (8, 14, "left"),
)
"""Offsets that are tried in this order, and the side of the text that begins there."""
HIDDEN, OUTSIDE = 10, 5
"""How bad it is to lie on another label, or beyond the plane; to lie on a mark is 1."""


class Spot(NamedTuple):
    """Offset of a label from its point."""

    x: float
    y: float
    side: Side


class _Box(NamedTuple):
    left: float
    low: float
    right: float
    high: float

    def holds(self, place: tuple[float, float]) -> bool:
        return self.left <= place[0] <= self.right and self.low <= place[1] <= self.high

    def meets(self, other: _Box) -> bool:
        return self.left < other.right and other.left < self.right and self.low < other.high and other.low < self.high


def spots(
    labels: Sequence[tuple[str, tuple[float, float]]], marks: Sequence[tuple[float, float]], plane: tuple[float, float]
) -> list[Spot]:
    """Return where each of `labels` (text, place of its point) stands in a plane of a width and a height: one after the
    other at the first spot where it lies on the fewest `marks`, and on no label before it if there is such a spot."""
    taken: list[_Box] = []
    chosen: list[Spot] = []
    for text, (x, y) in labels:
        width = LETTER * len(text)
        boxes = []
        for dx, dy, side in SPOTS:
            left = x + dx - (width if side == "right" else 0.0)
            boxes.append(_Box(left, y + dy - 1, left + width, y + dy + LINE))
        costs = [
            sum(map(box.holds, marks))
            + HIDDEN * sum(map(box.meets, taken))
            + OUTSIDE * (box.left < 0 or box.low < 0 or box.right > plane[0] or box.high > plane[1])
            for box in boxes
        ]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        chosen.append(Spot(*SPOTS[best]))
    return chosen


def along(line: Sequence[tuple[float, float]], parts: int = 24) -> list[tuple[float, float]]:
    """Return places along a line through points, so that labels keep off it."""
    return [
        (a[0] + (b[0] - a[0]) * k / parts, a[1] + (b[1] - a[1]) * k / parts)
        for a, b in pairwise(line)
        for k in range(1, parts)
    ]
