"""Virtual time: a heap of times, what is to happen at each, and what happens now. Knows nothing of what it is."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Happening = Callable[..., None]


class EventQueue:
    """What happens at the same time happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self.over = False
        """Nothing more is to happen."""
        self._times: list[float] = []
        """A heap of all times that are to come."""
        self._at: dict[float, list[tuple[Happening, tuple[Any, ...]]]] = {}
        """By time, the one that is now too: it grows while it happens."""
        self._present: list[tuple[Happening, tuple[Any, ...]]] = []
        self._next = 0
        """How many of these have happened."""

    def at(self, time: float, happen: Happening, *args: Any) -> None:
        """Have `happen(*args)` at `time`."""
        happenings = self._at.get(time)
        if happenings is None:
            self._at[time] = [(happen, args)]
            heapq.heappush(self._times, time)
        else:
            happenings.append((happen, args))

    def after(self, delay: float, happen: Happening, *args: Any) -> None:
        """Have it `delay` seconds from now."""
        time = self.now + delay
        happenings = self._at.get(time)
        if happenings is None:
            self.at(time, happen, *args)
        else:
            happenings.append((happen, args))

    def run(self, limit_s: float) -> None:
        """Have one thing happen after the other, until all is `over` or there is nothing more up to `limit_s`."""
        while not self.over and self._go_on() and self.now <= limit_s:
            while self._next < len(self._present) and not self.over:
                happen, args = self._present[self._next]
                self._next += 1
                happen(*args)

    def same(self, happen: Happening) -> list[tuple[Any, ...]]:
        """Take what is next and the same as what happens now, at the same time: return the arguments of each."""
        first = self._next
        while self._next < len(self._present) and self._present[self._next][0] == happen:
            self._next += 1
        return [args for _, args in self._present[first : self._next]]

    def _go_on(self) -> bool:
        """Go on to the next time at which something happens; return False if there is none."""
        if not self._times:
            return False
        if self._present:
            del self._at[self.now]
        self.now = heapq.heappop(self._times)
        self._present, self._next = self._at[self.now], 0
        return True
