"""Ranks whose links become slow: the fold of what each measures of its own transfers. Pure.

A transfer is held against what its link needs, and against those of the other ranks in the same windows: what a busy machine
does to all is no fault of a link. Noise only makes transfers longer, so of several the quickest tells what the link can do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from statistics import median, median_high

SLOW, SOUND = 1.3, 1.15
"""A link is slow whose quickest transfer takes so many times as long as those of the others; and sound when one took less
than so many times what it needs."""
WINDOWS = 3
"""In so many windows in a row: more than of a rank's own work, as a window may hold a single transfer."""


@dataclass
class LinkWatch:
    """What is watched of one rank's link."""

    row: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    """(quickest transfer, times what it needs; when the window began) of the last windows with transfers."""
    named: int | None = None
    """Place of what it was named for, while that lasts."""
    factor: float = 1.0
    """So many times as long its transfers take, while it is named."""
    _quickest: float = 0.0

    def take(self, ratio: float) -> None:
        """Take note of the quickest transfer since the last report; 0: there was none."""
        if ratio > 0.0:
            self._quickest = min(self._quickest or ratio, ratio)

    def usual(self, since: float) -> float:
        """Return what is usual of the windows that began at `since` or later; of a slow link, less what it is slow by.
        Infinite: there are none."""
        ratios = [ratio / self.factor for ratio, began in self.row if began >= since]
        return median_high(ratios) if ratios else inf

    def close(self, began: float, others: Iterable[LinkWatch]) -> bool:
        """End a window; return whether the rank's link is now slow that was not, or the other way round. A window without a
        transfer says nothing. Others are asked for windows that began since this rank's did: what came over all of them at
        once is in those."""
        ratio, self._quickest = self._quickest, 0.0
        if not ratio:
            return False
        self.row.append((ratio, began))
        if self.named is not None:
            self.factor = max(min(self.factor, ratio), 1.0)
            return ratio < SOUND  # of itself: others may have had their bursts just before
        usual = [other.usual(self.row[0][1]) for other in others if other.row]
        self.factor = min(ratio for ratio, _ in self.row) / max(median(usual or [1.0]), 1.0)
        if len(self.row) == WINDOWS and self.factor >= SLOW:
            return True
        self.factor = 1.0
        return False

    def turn(self, place: int) -> tuple[float, float]:
        """Be named at `place`, or no longer; return the factor, and when the first window of that began."""
        if self.named is not None:
            self.named, self.factor = None, 1.0
            return self.row[-1]
        self.named = place
        return self.factor, self.row[0][1]
