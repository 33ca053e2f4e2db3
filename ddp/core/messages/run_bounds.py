"""The first and last lines of a run's record: what the run is, when it began, how it ended. The coordinator never sees
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddp.core.messages.event_parts import PastFault


@dataclass(frozen=True)
class RunHeader:
    """The first line of a record: the run and its environment."""

    at: float
    """Time of the line after it."""
    launched: float
    """When this process began or resumed the run."""
    spec: dict[str, Any]
    """The resolved configuration, without the location of the run's folder."""
    env: dict[str, Any]
    """Machine and versions."""
    git: dict[str, Any]
    """State of the source."""


@dataclass(frozen=True)
class Launched:
    """The line after the header: times of the run, and of its resumptions, count from here."""

    at: float


@dataclass(frozen=True)
class Attempt:
    """An attempt at a run that ended before its first checkpoint, so that all ranks began anew. Times are on the clock of
    the record."""

    launched: float
    begun: float
    """When all ranks were ready."""
    ended: float
    samples: int
    """Samples that were trained in it."""
    faults: tuple[PastFault, ...]


@dataclass(frozen=True)
class RunEnd:
    """The last line of a record: how the engine ended, and what it cannot know itself."""

    at: float
    status: str
    error: str | None
    warnings: tuple[str, ...]
    restarts: int
    """How often torchrun had restarted the processes."""
    elapsed: float | None = None
    """Seconds since `RunHeader.launched` by an independent clock; None: the machine has none."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier attempts of the same command, without a checkpoint."""
