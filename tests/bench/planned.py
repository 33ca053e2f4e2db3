"""One configuration, and what is planned of it with changes."""

from __future__ import annotations

from dataclasses import replace

from bench.config.config import Choice, Config, ModelConfig
from bench.config.config_checks import Machine
from bench.config.plan import plan
from bench.models.setup import Recipe, Setup

SETUP = Setup(
    summary="",
    citation="",
    published="",
    metric="accuracy",
    higher_is_better=True,
    recipes={"quick": Recipe(data="digits", epochs=3, batch_size=32, lr=0.1, target=0.9, lr_scale_ratio=0.5)},
    task=lambda recipe, folder: None,  # type: ignore[arg-type, return-value]
    depth=20,
)
BASE = Config(model=ModelConfig("mlp"), engine=Choice("elche"), policy={"name": "cadence"}, backend=Choice("nccl"))


def planned(gpus=0, **changes):
    return plan(replace(BASE, **changes), SETUP, ("digits", "mnist"), Machine(cores=2, gpus=gpus))
