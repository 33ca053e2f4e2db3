"""Places the labels of points without overlap. Pure; lengths are typographic points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Side = Literal["left", "right"]
Place = tuple[float, float]
SIZE = 8.6
"""Font size."""
LETTER, DIGIT, LINE = 5.2, 6.2, 9.7
"""Width of a letter and of a bold digit, and height of a line, at that size."""
MARK = 2.5
"""Half the width of a point's mark, as a square."""
NEAR: tuple[tuple[float, float, Side], ...] = (
    (6, -13, "left"),
    (6, 4, "left"),
    (-6, 4, "right"),
    (-6, -13, "right"),
    (8, -22, "left"),
    (8, 15, "left"),
)
"""Offsets that are tried first, in this order, and the side of the text that starts there."""
RINGS, ANGLES = (18, 28, 40, 54, 70, 88), 24
"""Distances of the further candidates, and the number of candidates at each distance."""
FAR: tuple[tuple[float, float, Side], ...] = tuple(
    (r * math.cos(angle), r * math.sin(angle) - LINE / 2, "left" if math.cos(angle) > -1e-9 else "right")
    for r in RINGS
    for angle in (2 * math.pi * k / ANGLES for k in range(ANGLES))
)
SPOTS = NEAR + FAR
OUTSIDE, HIDDEN, CROSSED, MARKED, STRANGE, AWAY = 50.0, 30.0, 8.0, 3.0, 2.5, 0.02
"""Penalty of a label outside the plot; on another label; on a leader, or its own leader on a label; on a mark; nearer
to another mark than to its own; per typographic point of distance."""


class Spot(NamedTuple):
    """Offset of a label from its point."""

    x: float
    y: float
    side: Side
    moved: bool
    """Whether it is so far from its point that it needs a leader line."""


class _Box(NamedTuple):
    left: float
    low: float
    right: float
    high: float

    def holds(self, place: Place, room: float = 0.0) -> bool:
        return self.left - room <= place[0] <= self.right + room and self.low - room <= place[1] <= self.high + room

    def away(self, place: Place) -> float:
        x, y = place
        return math.hypot(max(self.left - x, x - self.right, 0.0), max(self.low - y, y - self.high, 0.0))

    def meets(self, other: _Box) -> bool:
        return self.left < other.right and other.left < self.right and self.low < other.high and other.low < self.high


def length(text: str) -> float:
    """Return the width of a label; numbers are bold."""
    return (DIGIT if text.isdecimal() else LETTER) * len(text)


def spots(
    labels: Sequence[tuple[str, Place]], marks: Sequence[Place], plane: Place, lines: Sequence[Place] = ()
) -> list[Spot]:
    """Return the spot of each of `labels` (text, place of its point) in a `plane` (width, height). Labels are placed in
    turn, each where its penalty is lowest: inside the plane, on no earlier label, on few `marks` and near its point.
    `lines` are places along lines; covering them costs half as much as covering marks."""
    taken: list[_Box] = []
    leaders: list[Place] = []
    chosen: list[Spot] = []
    for text, (x, y) in labels:
        width, best = length(text), None
        for place, (dx, dy, side) in enumerate(SPOTS):
            left = x + dx - (width if side == "right" else 0.0)
            box = _Box(left, y + dy - 1, left + width, y + dy + LINE)
            leader = _leader((x, y), (x + dx, y + dy + LINE / 2)) if place >= len(NEAR) else []
            cost = _cost(box, taken, marks, lines, plane)
            cost += STRANGE * any(box.away(mark) < box.away((x, y)) - 0.1 for mark in marks)
            cost += CROSSED * (any(map(box.holds, leaders)) + sum(any(map(b.holds, leader)) for b in taken))
            cost += MARKED * sum(_close(step, mark) for step in leader[2:] for mark in marks)
            cost += AWAY * math.hypot(dx, dy) * (place >= len(NEAR)) + 0.001 * place
            if best is None or cost < best[0]:
                best = cost, Spot(dx, dy, side, place >= len(NEAR)), box, leader
        assert best is not None
        _, spot, box, leader = best
        taken.append(box)
        leaders += leader
        chosen.append(spot)
    return chosen


def _cost(box: _Box, taken: Sequence[_Box], marks: Sequence[Place], lines: Sequence[Place], plane: Place) -> float:
    outside = box.left < 0 or box.low < 0 or box.right > plane[0] or box.high > plane[1]
    on_marks = MARKED * (sum(box.holds(mark, MARK) for mark in marks) + 0.5 * any(map(box.holds, lines)))
    return OUTSIDE * outside + HIDDEN * sum(map(box.meets, taken)) + on_marks


def _close(a: Place, b: Place) -> bool:
    return math.hypot(a[0] - b[0], a[1] - b[1]) < 4


def _leader(start: Place, end: Place) -> list[Place]:
    return [start, *along([start, end], 8), end]


def along(line: Sequence[Place], parts: int = 24) -> list[Place]:
    """Return evenly spaced places on a line through points, which labels then avoid. `parts`: steps between two
    points."""
    return [
        (a[0] + (b[0] - a[0]) * k / parts, a[1] + (b[1] - a[1]) * k / parts)
        for a, b in pairwise(line)
        for k in range(1, parts)
    ]
