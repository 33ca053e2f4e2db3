"""Detects ranks whose links become slow, from what each rank measures of its own transfers. Pure.

A transfer is compared with the time that its link needs, and with other ranks' transfers in the same windows, as a busy
machine slows all of them. Noise only makes transfers longer, so the quickest one tells most about a link."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from statistics import median, median_high

SLOW, SOUND = 1.3, 1.15
"""A link is slow if its quickest transfer takes this multiple of the others'; and sound if one took less than this multiple
of what the link needs."""
WINDOWS = 3
"""Number of consecutive windows that decide. More than for a rank's own work, as a window may contain a single transfer."""


@dataclass
class LinkWatch:
    """The watch on one rank's link."""

    row: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOWS))
    """(quickest transfer / what it needs, start of the window) of the last windows with transfers."""
    named: int | None = None
    """Index of the finding, while the link counts as slow."""
    factor: float = 1.0
    """Factor on the time of its transfers, while the link counts as slow."""
    _quickest: float = 0.0

    def take(self, ratio: float) -> None:
        """Note the quickest transfer since the last report; 0: there was none."""
        if ratio > 0.0:
            self._quickest = min(self._quickest or ratio, ratio)

    def usual(self, since: float) -> float:
        """Return the usual ratio in windows that began at `since` or later, without this link's own slowness. Infinite: no
        windows."""
        ratios = [ratio / self.factor for ratio, began in self.row if began >= since]
        return median_high(ratios) if ratios else inf

    def close(self, began: float, others: Iterable[LinkWatch]) -> bool:
        """End a window; return whether the link changed between slow and sound. A window without a transfer says nothing.
        Others are compared by windows since the start of this rank's row, so that a disturbance of all links is in both."""
        ratio, self._quickest = self._quickest, 0.0
        if not ratio:
            return False
        self.row.append((ratio, began))
        if self.named is not None:
            self.factor = max(min(self.factor, ratio), 1.0)
            return ratio < SOUND  # compared with its own need: others may have been disturbed just before
        usual = [other.usual(self.row[0][1]) for other in others if other.row]
        self.factor = min(ratio for ratio, _ in self.row) / max(median(usual or [1.0]), 1.0)
        if len(self.row) == WINDOWS and self.factor >= SLOW:
            return True
        self.factor = 1.0
        return False

    def turn(self, place: int) -> tuple[float, float]:
        """Switch between sound and slow (finding number `place`); return the factor, and the start of the first such
        window."""
        if self.named is not None:
            self.named, self.factor = None, 1.0
            return self.row[-1]
        self.named = place
        return self.factor, self.row[0][1]
