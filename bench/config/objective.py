"""The number of a run that a searching sweeper (`hydra/sweeper=optuna`) optimizes, chosen by `objective=`. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bench.base.usage import UsageError, usage
from bench.config.sweep_points import values
from bench.models import MODELS, load, own_model
from ddp.settings import known
from ddp.suggest import unknown

OBJECTIVES: dict[str, tuple[bool | None, Callable[[Any], float | None]]] = {
    "metric": (None, lambda m: m.final.eval),
    "samples_per_s": (True, lambda m: m.throughput.samples_per_s),
    "time_to_target": (False, lambda m: m.target.seconds if m.target.reached else None),
}
"""Name -> whether higher is better (None: the model decides), and a function that returns the number (None: the run
has none)."""
TIMED = ("samples_per_s", "time_to_target")
CHOOSING = ("bench", "basic")
"""Sweepers that run every point, whatever the results."""


def check(name: str, timing: bool = True) -> None:
    """Raise ValueError for an unknown objective, or one that runs without `timing` lack."""
    if name not in OBJECTIVES:
        raise ValueError(unknown("objective", name, OBJECTIVES))
    if not timing and name in TIMED:
        raise ValueError(f"objective={name} is a speed, which timing=off does not measure: leave one of them out")


def objective(name: str, metrics: Any) -> float:
    """Return the objective of a run with these `Metrics`; infinitely bad if the run failed or never reached its
    target."""
    higher, number = OBJECTIVES[name]
    value = number(metrics) if metrics.status == "ok" else None
    if value is not None:
        return value
    return -math.inf if (metrics.final.higher_is_better if higher is None else higher) else math.inf


def direction(composed: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Return the override that sets the direction of a searching sweeper; none if the sweeper has no such setting or
    the user set it. Raise UsageError if the models of the sweep need different directions."""
    settings: Any = OmegaConf.select(composed, "hydra.sweeper")
    if "direction" not in settings or any(word.startswith("hydra.sweeper.direction=") for word in overrides):
        return []
    name = composed.objective
    try:
        check(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
    higher = OBJECTIVES[name][0]
    if higher is None:
        swept = [*(f"{key}={value}" for key, value in (settings.params or {}).items()), *overrides]
        models = [word for each in swept if each.startswith(("model=", "model.name=")) for word in values(each)]
        names = {word.partition("=")[2] for word in models} or {composed.model.name}
        with usage():
            senses = {load(known("model", own_model(name), MODELS)).higher_is_better for name in names}
        if len(senses) > 1:
            why = "higher is better for some of the models and lower for others: search for each model alone"
            raise UsageError(f"objective={name}: {why}")
        (higher,) = senses
    return [f"hydra.sweeper.direction={'maximize' if higher else 'minimize'}"]
