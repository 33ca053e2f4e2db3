"""The first and the last lines of a run's record: what the run is, when it began, how it ended. No coordinator sees them."""

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
class Launched:
    """For the record, right behind its first line: times of the run, and of what goes on with it, count from here."""

    at: float


@dataclass(frozen=True)
class RunEnd:
    """For the record, its last line: how the engine ended, and what it cannot tell itself."""

    at: float
    status: str
    error: str | None
    warnings: tuple[str, ...]
    restarts: int
    """How often torchrun started the processes before."""
    elapsed: float | None = None
    """Seconds since `RunHeader.launched` by another clock of the machine; None: it has none."""
