"""Ratios with intervals: whether an interval is narrow enough to report, and how many seeds would make it so. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bench.base import special
from bench.report.measures.differences import TAIL, MeanDifference, factor
from bench.validate.statistics.significance import LOOKS

WIDEST = 4.0
"""Most that an interval's upper end may be over its lower end; a wider interval contains both twice and half as
fast."""
MOST_SEEDS = 20
"""Most seeds of a cell that are advised."""


@dataclass(frozen=True)
class Interval:
    """A ratio over solo's, with its 95 % interval; None: too few seeds for one."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    n_base: int = 1

    @staticmethod
    def of(logarithm: MeanDifference | None) -> Interval | None:
        """Return the ratio of a difference of logarithms."""
        if logarithm is None:
            return None
        low, high = (None if end is None else factor(end) for end in (logarithm.low, logarithm.high))
        return Interval(factor(logarithm.value), low, high, logarithm.n, logarithm.n_base)

    @property
    def wide(self) -> bool:
        """Whether it has an interval that is too wide."""
        return self.low is not None and self.high is not None and self.high > WIDEST * self.low

    @property
    def measured(self) -> bool:
        """Whether it has an interval that is narrow enough."""
        return self.low is not None and self.high is not None and not self.wide

    def over(self, ideal: float) -> Interval:
        """Return the ratio and its interval divided by `ideal`."""
        low, high = (None if end is None else end / ideal for end in (self.low, self.high))
        return replace(self, value=self.value / ideal, low=low, high=high)


def seeds_to_decide(ratio: Interval) -> int | None:
    """Return how many more seeds of both sides would show on which side of 1 the ratio lies, if it and the spread stay as
    they are; None: more than `MOST_SEEDS` in all."""
    return _seeds(ratio, abs(math.log(ratio.value)))


def seeds_to_measure(ratio: Interval) -> int | None:
    """Return how many more seeds of both sides would make the interval narrow enough; None: more than `MOST_SEEDS` in
    all."""
    return _seeds(ratio, math.log(WIDEST) / 2)


def _seeds(ratio: Interval, reach: float) -> int | None:
    """Return how many more seeds would make half the interval of the logarithm smaller than `reach`, by Student's t
    with equal variances; None: more than `MOST_SEEDS` in all."""
    most = max(ratio.n, ratio.n_base)
    if ratio.low is None or ratio.high is None:
        return max(LOOKS[0] - min(ratio.n, ratio.n_base), 1)
    half = math.log(ratio.high / ratio.low) / 2
    freedom = max(ratio.n + ratio.n_base - 2, 1)
    spread = half / (special.stdtrit(freedom, 1 - TAIL) * math.sqrt(1 / ratio.n + 1 / ratio.n_base))
    for seeds in range(most, MOST_SEEDS + 1):
        if seeds > 1 and special.stdtrit(2 * seeds - 2, 1 - TAIL) * spread * math.sqrt(2 / seeds) < reach:
            return max(seeds - min(ratio.n, ratio.n_base), 1)
    return None
