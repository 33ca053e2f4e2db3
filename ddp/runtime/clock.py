"""The one clock: CLOCK_MONOTONIC, shared by all processes of a host, so that ranks need no synchronisation."""

from __future__ import annotations

from time import monotonic as now

__all__ = ["now"]
