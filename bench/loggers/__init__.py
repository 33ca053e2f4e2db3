"""Writes runs for users' tracking tools: `logger=tensorboard|mlflow|wandb`, or a list of them. One file each.

A logger gets scalars while a run lasts, and writes the whole run from the finished run folder, on this machine, where
its tool looks for it. It works in a process of its own (`process`, `follow`), which imports the tool's package. It
never fails a run, nor delays it for long. Each package is an extra of the same name.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from ddp import user_code
from ddp.registries import blamed, missing
from ddp.registry import Registry

NONE = "none"
_OURS = {
    "mlflow": "bench.loggers.mlflow_store",
    "tensorboard": "bench.loggers.tensorboard_events",
    "wandb": "bench.loggers.wandb_offline",
}
LOGGERS: Registry[str] = Registry("loggers", _OURS, lambda entry: entry.value)
"""Name -> module, imported on use."""
PACKAGES = frozenset(("mlflow", "tensorboard", "wandb"))
"""Loggers that need the package of their name, which is that of an extra."""


@dataclass(frozen=True)
class RunInfo:
    """The data of a run that loggers get at its start, before it has a folder."""

    model: str
    mode: str
    run_id: str
    config_hash: str
    world_size: int
    metric: str
    """Name of what evaluation measures."""
    timing: bool = True
    """Whether speeds are measured."""


def chosen(choice: Any) -> tuple[str, ...]:
    """Return the loggers that `logger=...` asks for: a name, or a list of names. ValueError, in one line, for one that
    is unknown or whose package is not there."""
    words = choice if isinstance(choice, list | tuple) else [NONE if choice is None else choice]
    names = tuple(dict.fromkeys(str(word) for word in words if word != NONE))
    for name in names:
        if name not in LOGGERS:
            raise ValueError(missing("logger", name, LOGGERS))
        if not LOGGERS.is_ours(name):
            with blamed("logger", name, LOGGERS[name]):
                user_code.file_of(LOGGERS[name])
        elif name in PACKAGES and importlib.util.find_spec(name) is None:
            raise ValueError(f"logger={name} needs the package {name}: pip install {name}")
    return names
