"""Emulates a slow device: a rank's step takes 1/speed times as long. Sleeps, so that it costs the other ranks no core."""

from __future__ import annotations

from time import sleep

from ddp.runtime.clock import now
from ddp.runtime.meter import Meter

MEMORY = 64
"""Steps that a typical one is the mean of."""


class Slowdown:
    """`speed` in (0, 1]. What a sleep overshoots is taken off the next one, so the mean is exact.

    The sleep is that of a typical step: a slow device is slow, it does not hiccup 1/speed times as long as a fast one.
    """

    def __init__(self, speed: float) -> None:
        self._factor = 1.0 / speed - 1.0
        self._owed = 0.0
        self._typical = 0.0
        """Seconds of real work, mean over the last steps."""
        self._seen = 0

    def slow_down(self, factor: float) -> None:
        """From now on a step takes `factor` (1 or more) times as long as until now."""
        self._factor = (1.0 + self._factor) * factor - 1.0

    def pay(self, busy_s: float, meter: Meter) -> float:
        """After `busy_s` seconds of real work; returns now."""
        at = now()
        if self._factor == 0.0:
            return at
        self._seen += 1
        self._typical += (busy_s - self._typical) / min(self._seen, MEMORY)
        self._owed += self._typical * self._factor
        if self._owed <= 0.0:
            return at
        sleep(self._owed)
        after = meter.add("slowdown", at)
        self._owed -= after - at
        return after
