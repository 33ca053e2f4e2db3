"""What ranks did over time, in a bounded number of bins of equal length. Pure.

A report covers the time since the rank's last report, and is spread evenly over it. When the bins are full, pairs are
merged: a run of a week needs as much memory as one of a minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

FIRST_WIDTH_S = 0.25
CELLS = 4800
"""Approximate number of bins of all ranks together."""


class TimeBin(NamedTuple):
    """What one rank did in one bin: sums, so that bins can be added."""

    seconds: float = 0.0
    """Seconds that reports cover."""
    steps: float = 0.0
    samples: float = 0.0
    busy_s: float = 0.0
    loss_sum: float = 0.0
    """Sum over samples; NaN if a loss was not finite."""
    cpu_s: float = 0.0
    """Processor seconds within the seconds of `used_s`."""
    used_s: float = 0.0
    gpu_s: float = 0.0
    """Seconds in which the rank's GPU was busy, within the seconds of `gpu_used_s`."""
    gpu_used_s: float = 0.0
    rss: float = 0.0
    """Peak host memory, bytes."""
    device: float = 0.0
    """Peak device memory, bytes."""

    def plus(self, other: TimeBin) -> TimeBin:
        """Return the sum of two bins; the maximum for memory."""
        sums = (a + b for a, b in zip(self[:-2], other[:-2], strict=True))
        return TimeBin._make([*sums, max(self.rss, other.rss), max(self.device, other.device)])

    def times(self, part: float) -> TimeBin:
        """Return the bin scaled to a part of its time."""
        return TimeBin._make([*(value * part for value in self[:-2]), self.rss, self.device])


@dataclass
class Series:
    """The bins of every rank: bin i covers [i, i + 1) * width seconds."""

    width: float = FIRST_WIDTH_S
    """Length of a bin, seconds."""
    ranks: dict[int, list[TimeBin]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Number of bins of the rank that has most."""
        return max(map(len, self.ranks.values()), default=0)

    @property
    def limit(self) -> int:
        """Most bins per rank."""
        return max(60, min(240, CELLS // max(len(self.ranks), 1)))

    def add(self, rank: int, start: float, stop: float, what: TimeBin) -> None:
        """Spread what a rank did over the time from `start` to `stop`, seconds since the origin."""
        start, stop = max(start, 0.0), max(stop, 0.0)
        if not (math.isfinite(start) and math.isfinite(stop)):
            return
        start, bins = min(start, stop), self.ranks.setdefault(rank, [])
        while stop / self.width >= self.limit or self.length > self.limit:
            self.halve()
        first, last = int(start / self.width), int(stop / self.width)
        if stop > start and stop == last * self.width:
            last = max(first, last - 1)
        bins.extend([TimeBin()] * (last + 1 - len(bins)))
        for index in range(first, last + 1):
            inside = min(stop, (index + 1) * self.width) - max(start, index * self.width)
            bins[index] = bins[index].plus(what.times(inside / (stop - start) if last > first else 1.0))

    def halve(self) -> None:
        """Merge bins in pairs, and double their width."""
        for bins in self.ranks.values():
            bins.extend([TimeBin()] * (len(bins) % 2))
            bins[:] = [a.plus(b) for a, b in zip(bins[::2], bins[1::2], strict=True)]
        self.width *= 2
