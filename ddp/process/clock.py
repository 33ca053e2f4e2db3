"""The one clock: CLOCK_MONOTONIC of the coordinator's host. Processes on other hosts add the difference to their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic, thread_time

_shift = 0.0
_ROUNDS = 300
"""Rounds of the fixed piece of work: some 10 us."""


def now() -> float:
    """Return the time in seconds."""
    return monotonic() + _shift


def shift(seconds: float) -> None:
    """Offset this process's clock by `seconds` from now on."""
    global _shift
    _shift = seconds


def stopwatch() -> Callable[[], float | None]:
    """Return a function that gives the seconds since this call by a clock that is never adjusted, to check `now` against.
    None if the system has no such clock."""
    # Like `monotonic`, neither runs while the machine sleeps. The first exists on macOS, where the second runs on.
    clock = getattr(time, "CLOCK_UPTIME_RAW", getattr(time, "CLOCK_MONOTONIC_RAW", None))
    if clock is None:
        return lambda: None
    began = time.clock_gettime(clock)
    return lambda: time.clock_gettime(clock) - began


def core_wait() -> float:
    """Return how long the calling thread has waited for a core so far, seconds; 0 except on Linux."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def core_pace() -> float:
    """Return the processor seconds of a fixed piece of work, some 20 us: the quicker of two goes, as the first may have to
    fetch it from memory. A core that is shared with another machine takes up to twice as long."""
    return min(_fixed_work(), _fixed_work())


def _fixed_work() -> float:
    began, total = thread_time(), 0
    for number in range(_ROUNDS):
        total += number * number
    return thread_time() - began
