"""What a logger is: a module that writes a run for one tool. Knows no tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.loggers.recorded import Begun, Recorded, Scalar


class Live(Protocol):
    """A run that lasts, as a tool has it."""

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Show more of it at once. Raises whatever its package raises."""
        ...

    def end(self) -> None:
        """End it, as the run is gone without a result: what was added is all there is."""
        ...


class Logger(Protocol):
    """A module of the registry."""

    def begin(self, run: Begun, output: Path) -> Live | None:
        """Begin a run, beside what an earlier attempt at it has left; `output`: folder of all runs. None: this tool cannot
        show a run that lasts."""
        ...

    def write(self, run: Recorded, output: Path, live: Live | None = None) -> Path:
        """Write a run, in place of what an earlier attempt at it has left, or goes on with what was begun and is `live`. One
        that is not `ok` takes the place of none that is. Where it is now.

        Raises whatever its package raises."""
        ...
