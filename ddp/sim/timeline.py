"""Virtual time: a heap of what is to happen, and the time of what happens now. Knows nothing of what it is."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

Happening = Callable[..., None]


class EventQueue:
    """What happens at the same time happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._heap: list[tuple[float, int, Happening, tuple[Any, ...]]] = []
        self._count = itertools.count()

    def at(self, time: float, happen: Happening, *args: Any) -> None:
        """Have `happen(*args)` at `time`."""
        heapq.heappush(self._heap, (time, next(self._count), happen, args))

    def after(self, delay: float, happen: Happening, *args: Any) -> None:
        """Have it `delay` seconds from now."""
        self.at(self.now + delay, happen, *args)

    def step(self, limit_s: float) -> bool:
        """Have the next thing happen; return False if there is none up to `limit_s`."""
        if not self._heap:
            return False
        time, _, happen, args = heapq.heappop(self._heap)
        self.now = time
        if time > limit_s:
            return False
        happen(*args)
        return True
