"""The one clock: CLOCK_MONOTONIC of the coordinator's host. All its processes share it, other hosts know the difference."""

from __future__ import annotations

from time import monotonic

_shift = 0.0


def now() -> float:
    """Seconds."""
    return monotonic() + _shift


def shift(seconds: float) -> None:
    """From here on this process adds so much to its host's clock."""
    global _shift
    _shift = seconds
