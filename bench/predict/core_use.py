"""How step times depend on how many of the cores that ranks share are in use. Pure arithmetic.

A core that is rarely in use does each step more slowly or faster than a busy one: clocks, idle states and caches depend
on it. Runs of the same ranks with other emulated speeds show it. Between what they measured, the logarithm of a step's
time is linear in the logarithm of the cores in use; beyond, it goes on as the nearest two measurements do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

APART = math.log(1.5)
"""Least difference of the logarithms of two uses for a slope: with closer ones it would be that of chance, as runs differ by
some per cent from each other."""


@dataclass(frozen=True)
class CoreUseLaw:
    """Step times of a run at other core uses, relative to its own. Ascending logarithms; the run's own are (0, 0)."""

    uses: tuple[float, ...] = (0.0,)
    times: tuple[float, ...] = (0.0,)

    @staticmethod
    def of(measured: Iterable[tuple[float, float]]) -> CoreUseLaw:
        """Return the law of runs with (cores in use, seconds of a step), each relative to the run that is predicted
        from."""
        points = [(0.0, 0.0)]
        for use, time in sorted(measured, key=lambda point: abs(math.log(point[0]))):
            if all(abs(math.log(use) - known) >= APART for known, _ in points):
                points.append((math.log(use), math.log(time)))
        uses, times = zip(*sorted(points), strict=True)
        return CoreUseLaw(uses, times)

    def knows(self, use: float) -> bool:
        """Return whether `use` lies within what was measured, or so close to it that step times hardly differ."""
        return self.uses[0] - APART < math.log(use) < self.uses[-1] + APART

    def factor(self, use: float, goes_on: bool = True) -> float:
        """Return the factor on step times where `use` times as many cores are in use. `goes_on`: the law holds beyond
        what was measured; else step times remain as they are there."""
        if len(self.uses) == 1:
            return 1.0
        at = math.log(use) if goes_on else min(max(math.log(use), self.uses[0]), self.uses[-1])
        place = next((place for place, known in enumerate(self.uses[1:-1], 1) if at <= known), len(self.uses) - 1)
        (low, high), (begin, end) = self.uses[place - 1 : place + 1], self.times[place - 1 : place + 1]
        return math.exp(begin + (end - begin) * (at - low) / (high - low))
