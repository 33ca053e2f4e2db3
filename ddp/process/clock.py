"""The one clock: CLOCK_MONOTONIC of the coordinator's host. All its processes share it, other hosts know the difference."""

from __future__ import annotations

from time import monotonic

_shift = 0.0


def now() -> float:
    """Return the time, seconds."""
    return monotonic() + _shift


def shift(seconds: float) -> None:
    """Add so much to the clock of this host, from here on, in this process."""
    global _shift
    _shift = seconds
