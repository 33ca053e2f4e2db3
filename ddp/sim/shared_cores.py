"""Processor cores that simulated ranks share. Does not know what runs on them."""

from __future__ import annotations

import heapq


class SharedCores:
    """Cores that run work in order of arrival, each piece on one core and without preemption.

    A real system preempts longer pieces, so that all end late, where here the first ones end early. For steps of about a
    time slice, a millisecond or two, there is no difference."""

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count
        """A heap of the times at which each core becomes free."""

    def queued_s(self, now: float, seconds: float) -> float:
        """Give a core `seconds` of work at time `now`; return the seconds until the work begins."""
        begins = max(now, self._free[0])
        heapq.heapreplace(self._free, begins + seconds)
        return begins - now
