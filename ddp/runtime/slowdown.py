"""Emulates a slow device: a rank's step takes 1/speed times as long. Sleeps, so that it costs the other ranks no core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import sleep

from ddp.runtime.clock import now
from ddp.runtime.meter import Meter

MEMORY = 64
"""Steps that a typical one is the median of."""


class Slowdown:
    """`speed` in (0, 1]. What a sleep overshoots is taken off the next one. `working`: seconds of work so far, of the
    thread that pays: where emulated devices share cores, a rank waits for one, and a device of its own would not wait
    1/speed times as long.

    The sleep is that of a typical step: a slow device is slow, it does not hiccup 1/speed times as long as a fast one. The
    first step of a process takes a hundred times as long as those that follow: it is not slowed down, and tells nothing.
    """

    def __init__(self, speed: float, working: Callable[[], float] = now) -> None:
        self._factor = 1.0 / speed - 1.0
        self._working, self._worked = working, working()
        self._owed = 0.0
        self._recent: dict[str, deque[float]] = {}
        """Part of a step -> seconds of real work, of the last steps."""

    def slow_down(self, factor: float) -> None:
        """From now on a step takes `factor` (1 or more) times as long as until now."""
        self._factor = (1.0 + self._factor) * factor - 1.0

    def pay(self, busy_s: float, meter: Meter, part: str = "step") -> float:
        """After `busy_s` seconds in which a step, or a part of it, was done; returns now."""
        at, before = now(), self._worked
        self._worked = self._working()
        if (recent := self._recent.get(part)) is None:
            self._recent[part] = deque(maxlen=MEMORY)
            return at
        recent.append(min(busy_s, self._worked - before))  # something else was done before this, too
        if self._factor == 0.0:
            return at
        self._owed += median(recent) * self._factor
        if self._owed <= 0.0:
            return at
        sleep(self._owed)
        after = meter.add("slowdown", at)
        self._owed -= after - at
        return after
