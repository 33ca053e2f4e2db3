"""The first and the last line of a run's record: what the run is, and how it ended. They never reach a coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunHeader:
    """For the record, its first line: what the run is, and what it is made with."""

    at: float
    """As of the line after it."""
    launched: float
    """When this process began the run, or went on with it."""
    spec: dict[str, Any]
    """The run, fully resolved, but for where its folder lies."""
    env: dict[str, Any]
    """Machine and versions."""
    git: dict[str, Any]
    """State of the source."""


@dataclass(frozen=True)
class RunEnd:
    """For the record, its last line: how the engine ended, and what it cannot tell itself."""

    at: float
    status: str
    error: str | None
    warnings: tuple[str, ...]
    restarts: int
    """How often torchrun started the processes before."""
