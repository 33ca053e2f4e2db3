"""The plot of page one: points with intervals, the limits and ticks of its axes, the Pareto frontier. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from bench.report.page_one.answer import Option
from bench.report.page_one.words import FARTHEST

Place = tuple[float, float]
TICKS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 5))
FINE = (0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
FINEST = tuple(tuple(k / n for k in range(2 * n // 5, 2 * n + 1)) for n in (20, 50, 100, 200, 500))
"""Steps of 0.05, 0.02, 0.01, ..., for changes of a few percent."""
FEWEST = 3
"""Ticks of an axis."""


class Extent(NamedTuple):
    """A value with its interval on one axis; None: that end is unbounded."""

    value: float
    low: float | None
    high: float | None

    @property
    def bare(self) -> bool:
        """Whether there is no interval at all."""
        return self.low is None and self.high is None

    def unbounded(self, least: float, most: float) -> tuple[bool, bool]:
        """Return whether it is unbounded below and above, or reaches beyond the widest range of an axis."""
        return self.low is None or self.low < least, self.high is None or self.high > most


class Point(NamedTuple):
    """A way of training in the plane: time over one device's, and quality less one device's."""

    option: Option
    x: Extent
    y: Extent

    @staticmethod
    def of(option: Option, scale: float) -> Point:
        """Return the place of an option that has one; `scale`: of the quality."""
        assert option.time is not None
        assert option.quality is not None
        x, y = option.time, option.quality.difference
        low, high = (None if end is None else scale * end for end in (y.low, y.high))
        return Point(option, Extent(x.value, x.low, x.high), Extent(scale * y.value, low, high))

    @property
    def place(self) -> Place:
        """Where it is drawn."""
        return clipped(self.x.value), self.y.value

    @property
    def open_x(self) -> tuple[bool, bool]:
        """Whether its time is unbounded, on either side."""
        return (False, False) if self.x.bare else self.x.unbounded(1 / FARTHEST, FARTHEST)

    @property
    def open_y(self) -> tuple[bool, bool]:
        """Whether its quality is unbounded, on either side."""
        return (False, False) if self.y.bare else self.y.unbounded(-math.inf, math.inf)

    @property
    def trusted(self) -> bool:
        """Whether it may be on the frontier: it passed, and its time is reliable."""
        return self.option.sound and self.option.time is not None and not self.option.time.wide


def clipped(ratio: float) -> float:
    """Return a ratio clipped to the widest range of an axis."""
    return min(max(ratio, 1 / FARTHEST), FARTHEST)


def limits(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """Return the limits of an axis that holds all values with a margin."""
    scaled = [math.log(value) for value in values] if logarithmic else list(values)
    room = 0.09 * (max(scaled) - min(scaled)) or 0.2
    low, high = min(scaled) - room, max(scaled) + room
    return (math.exp(low), math.exp(high)) if logarithmic else (low, high)


def ticks(low: float, high: float) -> list[float]:
    """Return round ticks on a logarithmic axis, as coarse as possible with at least `FEWEST` ticks."""
    shown: list[float] = []
    for steps in (TICKS, FINE, *FINEST):
        shown = [step for step in steps if low <= step <= high]
        if len(shown) >= FEWEST:
            return shown
    return shown


def edge_of(points: Sequence[Point]) -> list[Place]:
    """Return the Pareto frontier of one device and the trusted points, sorted by time."""
    places = [(1.0, 0.0), *(p.place for p in points if p.trusted)]
    return [places[k] for k in frontier(places)]


def frontier(points: Sequence[Place]) -> list[int]:
    """Return the indices of the points (time, quality) on the Pareto frontier, sorted by time."""
    best, edge = float("-inf"), []
    for place in sorted(range(len(points)), key=lambda k: (points[k][0], -points[k][1])):
        if points[place][1] > best:
            best = points[place][1]
            edge.append(place)
    return edge
