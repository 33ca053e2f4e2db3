"""Means over samples or calls with exact sums, so that they do not depend on the order in which records arrive."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

UNIT = 1074
ONE = 1 << UNIT
Scalars = dict[str, float | None]
"""Name -> mean over the calls; None: not finite."""


class Mean:
    """A mean over samples or calls: an exact sum and a count."""

    def __init__(self) -> None:
        self._total: int | None = 0
        """The sum in units of 2**-UNIT; every finite float is a whole number of these."""
        self._count = 0

    def add(self, total: float | None, count: int) -> None:
        """Add a sum over `count` samples or calls. A sum that is None or not finite makes the mean None."""
        self._count += count
        if self._total is None or total is None or not math.isfinite(total):
            self._total = None
            return
        units, parts = total.as_integer_ratio()
        self._total += units << UNIT + 1 - parts.bit_length()

    def merge(self, other: Mean) -> None:
        """Add the sum and count of `other`."""
        known = self._total is not None and other._total is not None
        self._total = self._total + other._total if known else None  # type: ignore[operator]
        self._count += other._count

    @property
    def value(self) -> float | None:
        """The mean; None if it is not finite or nothing was added."""
        try:
            return None if self._total is None or not self._count else self._total / ONE / self._count
        except OverflowError:
            return None


def means(recorded: Iterable[Mapping[str, Mean]]) -> Scalars:
    """Return the mean of each scalar over all calls, by name in alphabetical order."""
    sums: defaultdict[str, Mean] = defaultdict(Mean)
    for each in recorded:
        for name, mean in each.items():
            sums[name].merge(mean)
    return {name: sums[name].value for name in sorted(sums)}
