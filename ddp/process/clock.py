"""The one clock: CLOCK_MONOTONIC of the coordinator's host. All its processes share it, other hosts know the difference."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic

_shift = 0.0


def now() -> float:
    """Return the time, seconds."""
    return monotonic() + _shift


def shift(seconds: float) -> None:
    """Add so much to the clock of this host, from here on, in this process."""
    global _shift
    _shift = seconds


def stopwatch() -> Callable[[], float | None]:
    """Return what tells the seconds since this call by a clock that nothing adjusts, to hold `now` against; None: there is
    none."""
    # Like `monotonic`, neither goes on while the machine sleeps: the first is of macOS, where the second does.
    clock = getattr(time, "CLOCK_UPTIME_RAW", getattr(time, "CLOCK_MONOTONIC_RAW", None))
    if clock is None:
        return lambda: None
    began = time.clock_gettime(clock)
    return lambda: time.clock_gettime(clock) - began


def core_wait() -> float:
    """Return for how long the calling thread has waited for a core so far, seconds; 0 anywhere but on Linux."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
