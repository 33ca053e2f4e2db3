"""Ranks whose links become slow: the fold of what each measures of its own transfers. Pure.

A transfer is held against what its link needs, and against those of the other ranks in the same windows: what a busy machine
does to all is no fault of a link. Noise only makes transfers longer, so of several the quickest tells what the link can do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

SLOW, SOUND = 1.3, 1.15
"""A link is slow whose quickest transfer takes so many times as long as those of the others; and sound when at most so many
times."""
WINDOWS = 3
"""In so many windows in a row: more than of a rank's own work, as a window may hold a single transfer."""


@dataclass
class LinkWatch:
    """What is watched of one rank's link."""

    row: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    """(quickest transfer, times what it needs; when the window began) of the last windows with transfers."""
    named: int | None = None
    """Place of what it was named for, while that lasts."""
    _quickest: float = 0.0

    def take(self, ratio: float) -> None:
        """Take note of the quickest transfer since the last report; 0: there was none."""
        if ratio > 0.0:
            self._quickest = min(self._quickest or ratio, ratio)

    @property
    def least(self) -> float:
        """Of the quickest transfer of these windows."""
        return min(ratio for ratio, _ in self.row)

    def close(self, began: float, others: Iterable[LinkWatch]) -> bool:
        """End a window; return whether the rank's link is now slow that was not, or the other way round. A window without a
        transfer says nothing."""
        ratio, self._quickest = self._quickest, 0.0
        if not ratio:
            return False
        self.row.append((ratio, began))
        known = [other.least for other in others if other.row and other.named is None]
        usual = max(median(known), 1.0) if known else 1.0
        if self.named is not None:
            return ratio < SOUND * usual
        return len(self.row) == WINDOWS and self.least >= SLOW * usual

    def turn(self, place: int) -> tuple[float, float]:
        """Be named at `place`, or no longer; return the factor, and when the first window of that began."""
        if self.named is not None:
            self.named = None
            return self.row[-1]
        self.named = place
        return median(ratio for ratio, _ in self.row), self.row[0][1]
