"""Recorded runs for the tools that people have: `logger=tensorboard|mlflow|wandb`, or a list of them. One file each.

A logger reads a finished run folder, and writes where its tool looks, on this machine. It never fails a run. Packages are
imported when they are used; each is an extra of the same name.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddp.suggest import unknown

if TYPE_CHECKING:
    from bench.loggers.recorded import Recorded

NONE = "none"
LOGGERS: dict[str, str] = {
    "mlflow": "bench.loggers.mlflow_store",
    "tensorboard": "bench.loggers.tensorboard_events",
    "wandb": "bench.loggers.wandb_offline",
}
"""Name, which is that of the package and of the extra -> module, imported on use."""


class Logger(Protocol):
    """A module of the registry."""

    def write(self, run: Recorded, output: Path) -> Path:
        """Write a run, in place of what an earlier attempt at it has left; `output`: folder of all runs. Where it is now.

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


def write(names: tuple[str, ...], folder: Path, output: Path) -> list[str]:
    """Have the loggers `names` write the run in `folder`; a line for each that could not."""
    problems = []
    for name in names:
        from bench.loggers.recorded import recorded  # a run without loggers does without

        try:
            logger: Logger = importlib.import_module(LOGGERS[name])
            logger.write(recorded(folder), output)
        except Exception as error:  # whatever a package of others' may do: the run is over, and its results are written
            said = (str(error) or type(error).__name__).splitlines()[0]
            problems.append(f"logger {name} failed ({type(error).__name__}: {said}); the run folder has everything")
    return problems
