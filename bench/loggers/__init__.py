"""Runs for the tools that people have: `logger=tensorboard|mlflow|wandb`, or a list of them. One file each.

A logger is told of a run while it lasts, and writes the whole of it from the finished run folder, where its tool looks, on
this machine. It does so in a process of its own (`beside`, `follow`) and never fails a run, nor holds one up for long.
Packages are imported there; each is an extra of the same name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddp.suggest import unknown

if TYPE_CHECKING:
    from bench.loggers.recorded import Begun, Recorded, Scalar

NONE = "none"
LOGGERS: dict[str, str] = {
    "mlflow": "bench.loggers.mlflow_store",
    "tensorboard": "bench.loggers.tensorboard_events",
    "wandb": "bench.loggers.wandb_offline",
}
"""Name, which is that of the package and of the extra -> module, imported on use."""


@dataclass(frozen=True)
class Said:
    """What a run says of itself to its loggers, before it has a folder."""

    model: str
    mode: str
    run_id: str
    config_hash: str
    world_size: int
    metric: str
    """Name of what evaluation measures."""
    launched: float
    """About, seconds on the clock of the records, until these tell it."""


class Live(Protocol):
    """A run that lasts, as a tool has it."""

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Show more of it at once. Raises whatever its package raises."""
        ...

    def end(self) -> None:
        """The run is gone without a result: what was added is all there is."""
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


def chosen(said: Any) -> tuple[str, ...]:
    """The loggers that `logger=...` asks for: a name, or a list of names. ValueError, in one line, for one that is unknown
    or whose package is not there."""
    words = said if isinstance(said, list | tuple) else [NONE if said is None else said]
    names = tuple(dict.fromkeys(str(word) for word in words if word != NONE))
    for name in names:
        if name not in LOGGERS:
            raise ValueError(unknown("logger", name, [*LOGGERS, NONE]))
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"logger={name} needs the package {name}: pip install '.[{name}]'")
    return names
