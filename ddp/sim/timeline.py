"""Virtual time: an event queue with callbacks, and the present time. Does not know what the callbacks do."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Happening = Callable[..., None]


class EventQueue:
    """Callbacks by time. Callbacks of the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        """Present time, seconds since the start."""
        self.over = False
        """Set to stop `run`."""
        self._times: list[float] = []
        """A heap of all future times."""
        self._at: dict[float, list[tuple[Happening, tuple[Any, ...]]]] = {}
        """Callbacks by time, including the present time, whose list may grow while it runs."""
        self._present: list[tuple[Happening, tuple[Any, ...]]] = []
        self._next = 0
        """How many of the present callbacks have run."""

    def at(self, time: float, happen: Happening, *args: Any) -> None:
        """Schedule `happen(*args)` at `time`."""
        happenings = self._at.get(time)
        if happenings is None:
            self._at[time] = [(happen, args)]
            heapq.heappush(self._times, time)
        else:
            happenings.append((happen, args))

    def after(self, delay: float, happen: Happening, *args: Any) -> None:
        """Schedule `happen(*args)` in `delay` seconds."""
        time = self.now + delay
        happenings = self._at.get(time)
        if happenings is None:
            self.at(time, happen, *args)
        else:
            happenings.append((happen, args))

    def run(self, limit_s: float) -> None:
        """Run the callbacks in order, until `over` is set, none is left, or the time exceeds `limit_s`."""
        while not self.over and self._go_on() and self.now <= limit_s:
            while self._next < len(self._present) and not self.over:
                happen, args = self._present[self._next]
                self._next += 1
                happen(*args)

    def gather(self, time: float, happen: Callable[[list[Any]], None], *items: Any) -> None:
        """Schedule `happen([*items])` at `time`. If the last callback added for that time is `happen` as well, and has not
        begun, it gets the items in its list."""
        happenings = self._at.get(time)
        begun = happenings is self._present and self._next == len(self._present)
        if happenings and not begun and happenings[-1][0] == happen:
            happenings[-1][1][0].extend(items)
        else:
            self.at(time, happen, list(items))

    def _go_on(self) -> bool:
        """Advance to the next time with callbacks; return False if there is none."""
        if not self._times:
            return False
        if self._present:
            del self._at[self.now]
        self.now = heapq.heappop(self._times)
        self._present, self._next = self._at[self.now], 0
        return True
