"""Tells how many processor cores this process may use. Imports no torch."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of cores that the system lets this process use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
