"""Emulates a slow device: a rank's step takes 1/speed times as long. Sleeps, so that it costs the other ranks no core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import sleep

from ddp.process.clock import now
from ddp.process.meter import Meter

MEMORY = 64
"""Steps that a typical one is the median of."""


def core_wait() -> float:
    """Return for how long the calling thread has waited for a core so far, seconds; 0 anywhere but on Linux."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


class Slowdown:
    """`speed` in (0, 1]. What a sleep overshoots is taken off the next one. `waited`: seconds for which the thread that
    pays has waited for a core so far. Emulated devices share cores; a real one would not wait 1/speed times as long for it.

    The sleep is that of a typical step: a slow device is slow, it does not hiccup 1/speed times as long as a fast one. The
    first step of a process takes a hundred times as long as those that follow: it is not slowed down, and tells nothing.
    """

    def __init__(self, speed: float, waited: Callable[[], float] = core_wait) -> None:
        self._factor = 1.0 / speed - 1.0
        self._waited, self._before = waited, 0.0
        self._owed = 0.0
        self._recent: dict[str, deque[float]] = {}
        """Part of a step -> seconds of real work, of the last steps."""

    def slow_down(self, factor: float) -> None:
        """Take `factor` (1 or more) times as long for a step as until now."""
        self._factor = (1.0 + self._factor) * factor - 1.0

    def begin(self) -> float:
        """Begin a step, or a part of one; return now."""
        if self._factor:
            self._before = self._waited()
        return now()

    def pay(self, busy_s: float, meter: Meter, part: str = "step") -> float:
        """Sleep after `busy_s` seconds of a step, or of a part of one; return now."""
        at = now()
        if (recent := self._recent.get(part)) is None:
            self._recent[part] = deque(maxlen=MEMORY)
            return at
        if not self._factor:
            recent.append(busy_s)
            return at
        recent.append(max(busy_s - (self._waited() - self._before), 0.0))
        self._owed += median(recent) * self._factor
        if self._owed <= 0.0:
            return at
        sleep(self._owed)
        after = meter.add("slowdown", at)
        self._owed -= after - at
        return after
