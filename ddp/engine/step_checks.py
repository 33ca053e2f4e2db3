"""Checks that a mode supports the settings of a step. Imports no torch."""

from __future__ import annotations

from ddp.core.settings.steps import StepSettings
from ddp.engine.modes import Mode, backend_of, engine_of, modes


def check_step(step: StepSettings, way: Mode, world_size: int, group: str = "") -> None:
    """Raise ValueError if the mode does not support the step settings; name those that do. `group`: prefix of the settings
    in the message."""
    wanted = {"fp16": "precision=fp16"} if step.precision == "fp16" else {}
    wanted |= {"compile": "compile=true"} if step.compile else {}
    for name, setting in wanted.items():
        if world_size > 1 and name in lacks(way):
            able = ", ".join(other for other, mode in modes().items() if name not in lacks(mode))
            raise ValueError(f"{group}{setting} with mode={way.name}, which cannot do it: choose one of {able}")


def lacks(way: Mode) -> tuple[str, ...]:
    """Return the step settings that a mode does not support."""
    backend = backend_of(way)
    return engine_of(way.engine).lacks + (() if backend is None else backend.lacks)
