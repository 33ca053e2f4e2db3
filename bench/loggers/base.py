"""The protocol of a logger: a module that writes a run for one tool. Knows no tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.loggers.recorded import Begun, Recorded, Scalar


class Live(Protocol):
    """A running run in a tool."""

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Add scalars, to be shown at once. Raises the exceptions of the tool's package."""
        ...

    def end(self) -> None:
        """Close the run, which ended without a result, with the scalars added so far."""
        ...


class Logger(Protocol):
    """A module of the registry."""

    def begin(self, run: Begun, output: Path) -> Live | None:
        """Begin a run, and keep the data of an earlier attempt at it. `output`: folder of all runs. Return None if the
        tool cannot show a running run."""
        ...

    def write(self, run: Recorded, output: Path, live: Live | None = None) -> Path:
        """Write a run; return its place. It replaces the data of earlier attempts, or continues the run begun as
        `live`. A run that is not `ok` never replaces one that is.

        Raises whatever its package raises."""
        ...
