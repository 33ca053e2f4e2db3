"""Own which ways of training can do a step in which way. Imports no torch."""

from __future__ import annotations

from ddp.core.step_settings import StepSettings
from ddp.engine.modes import Mode, backend_of, engine_of, modes


def check_step(step: StepSettings, way: Mode, world_size: int, group: str = "") -> None:
    """Raise ValueError for a step that the mode cannot do, with those that can. `group`: of the settings, for messages."""
    wanted = {"fp16": "precision=fp16"} if step.precision == "fp16" else {}
    wanted |= {"compile": "compile=true"} if step.compile else {}
    for name, setting in wanted.items():
        if world_size > 1 and name in lacks(way):
            able = ", ".join(other for other, mode in modes().items() if name not in lacks(mode))
            raise ValueError(f"{group}{setting} with mode={way.name}, which cannot do it: choose one of {able}")


def lacks(way: Mode) -> tuple[str, ...]:
    """Return what a step of the mode cannot be."""
    backend = backend_of(way)
    return engine_of(way.engine).lacks + (() if backend is None else backend.lacks)
