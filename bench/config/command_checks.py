"""Checks what a command line, with its presets, says of one cell, before anything is planned. Knows Hydra."""

from __future__ import annotations

from hydra.core.hydra_config import HydraConfig

from bench.config.config import Config
from bench.config.config_checks import check_paths, dashboard_port
from bench.config.hydra_errors import check_choices
from bench.config.objective import check
from bench.config.user_parts import check_model


def check_command(config: Config) -> int | None:
    """Return the port of the dashboard; None for no dashboard. Raise ValueError for what no cell can have."""
    hydra = HydraConfig.get()
    check_choices(hydra.runtime.choices)
    check_model(config, hydra.overrides.task)
    check_paths(config)
    check(config.objective, config.timing)
    return dashboard_port(config.dashboard)
