"""What ranks did over time, in a bounded number of stretches of equal length. Pure.

A rank reports what it did since its last report; that is spread evenly over the time between. When a run outgrows the
stretches there are, two become one: a run of a week needs as much room as one of a minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

FIRST_WIDTH_S = 0.25
CELLS = 4800
"""Stretches of all ranks together, about."""


class TimeBin(NamedTuple):
    """What one rank did in one stretch: sums, so that cells can be added."""

    seconds: float = 0.0
    """That reports cover."""
    steps: float = 0.0
    samples: float = 0.0
    busy_s: float = 0.0
    loss_sum: float = 0.0
    """Sum over samples; not a number where one was not finite."""
    cpu_s: float = 0.0
    """Processor seconds, of the seconds that `used_s` counts."""
    used_s: float = 0.0
    gpu_s: float = 0.0
    """Seconds in which the rank's GPU was at work, of those that `gpu_used_s` counts."""
    gpu_used_s: float = 0.0
    rss: float = 0.0
    """Most memory that was seen, bytes."""
    device: float = 0.0
    """The same on the rank's device."""

    def plus(self, other: TimeBin) -> TimeBin:
        """Both together."""
        sums = (a + b for a, b in zip(self[:-2], other[:-2], strict=True))
        return TimeBin._make([*sums, max(self.rss, other.rss), max(self.device, other.device)])

    def times(self, part: float) -> TimeBin:
        """The same over a part of the time."""
        return TimeBin._make([*(value * part for value in self[:-2]), self.rss, self.device])


@dataclass(frozen=True)
class Series:
    """Cells of every rank, of the same stretches: cell i lies at [i, i + 1) * width seconds."""

    width: float = FIRST_WIDTH_S
    """Seconds."""
    ranks: Mapping[int, tuple[TimeBin, ...]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Cells of the rank that has most."""
        return max(map(len, self.ranks.values()), default=0)

    @property
    def limit(self) -> int:
        """Cells that a rank may have."""
        return max(60, min(240, CELLS // max(len(self.ranks), 1)))


def spread(series: Series, rank: int, start: float, stop: float, what: TimeBin) -> Series:
    """With `what` rank `rank` did from `start` to `stop`, seconds from zero on."""
    start, stop = max(start, 0.0), max(stop, 0.0)
    if not (math.isfinite(start) and math.isfinite(stop)):
        return series
    start = min(start, stop)
    series = Series(series.width, {**series.ranks, rank: series.ranks.get(rank, ())})
    while stop / series.width >= series.limit or series.length > series.limit:
        series = halved(series)
    width, cells = series.width, series.ranks[rank]
    first, last = int(start / width), int(stop / width)
    if stop > start and stop == last * width:
        last = max(first, last - 1)
    cells += (TimeBin(),) * (last + 1 - len(cells))
    changed = []
    for index in range(first, last + 1):
        inside = min(stop, (index + 1) * width) - max(start, index * width)
        part = inside / (stop - start) if last > first else 1.0
        changed.append(cells[index].plus(what.times(part)))
    return Series(width, {**series.ranks, rank: (*cells[:first], *changed, *cells[last + 1 :])})


def halved(series: Series) -> Series:
    """The same with half as many stretches, twice as long."""
    ranks = {}
    for rank, cells in series.ranks.items():
        padded = cells + (TimeBin(),) * (len(cells) % 2)
        ranks[rank] = tuple(a.plus(b) for a, b in zip(padded[::2], padded[1::2], strict=True))
    return Series(series.width * 2, ranks)
