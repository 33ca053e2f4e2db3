"""Checks of the settings of engine `virtual`. Pure."""

from __future__ import annotations

from bench.config.config import Config
from ddp.backends import paired_backends
from ddp.core.settings.virtual_time import CONSTANT

VIRTUAL_NOTE = "virtual: ranks trained in one process, all times are those of a virtual clock"


def check_virtual(config: Config) -> None:
    """Raise ValueError for settings that the engine does not support."""
    if config.backend.name not in (able := paired_backends(virtual=True)):
        raise ValueError(f"backend={config.backend.name} with engine=virtual: choose one of {', '.join(able)}")
    if config.virtual.steps != CONSTANT:
        from ddp.sim.distributions import distribution  # with all of the simulator, which nothing else here needs

        distribution(config.virtual.steps, "virtual.steps")
