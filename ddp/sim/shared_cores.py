"""Processor cores that simulated ranks share. Knows nothing of what is done on them."""

from __future__ import annotations

import heapq


class SharedCores:
    """Cores on which work is done in the order in which it comes, each piece on one core and to its end.

    A system cuts longer work into slices, so that all pieces end late, where here those that come first end early. Steps of
    about one slice, a millisecond or two, are as here.
    """

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count
        """A heap: when each core has done what it was given."""

    def queued_s(self, now: float, seconds: float) -> float:
        """Give a core `seconds` of work from `now` on; return the seconds until it begins."""
        begins = max(now, self._free[0])
        heapq.heapreplace(self._free, begins + seconds)
        return begins - now
