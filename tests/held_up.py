"""Promises in seconds, on a machine that others may use as well: they hold on a quiet one, and longer the busier it is."""

from __future__ import annotations

import time

SAMPLE_S = 0.1


def in_time(began: float, seconds: float) -> bool:
    """Whether `seconds` have not passed since `began` on the monotonic clock. Where they have, they are stretched by twice
    what this machine holds a process up now: on a quiet one they are what they are."""
    took = time.monotonic() - began
    return took < seconds or took < seconds * (2.0 * held_up() - 1.0)


def held_up() -> float:
    """How many times as long as it computes a thread takes now: 1 if nothing keeps it from a core."""
    wall, computed = time.monotonic(), time.thread_time()
    while time.thread_time() - computed < SAMPLE_S:
        pass
    return max(1.0, (time.monotonic() - wall) / SAMPLE_S)
