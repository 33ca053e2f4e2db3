"""A user's own set-up, for bugs to be put beside: a sampler, and a scheduler of PyTorch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.data.options import DataOptions
from bench.models.parts import classification
from bench.models.setup import Recipe, Setup
from ddp import LRSchedule
from ddp.replica.task import Task

SAMPLES, DECAYS = 4312, 24


def bootstrap(epoch: int) -> Tensor:
    """Draw as many samples as there are, with replacement."""
    return torch.randint(0, SAMPLES, (SAMPLES,))


def build(data: Any) -> nn.Module:
    """Build it: [n, c, h, w] -> logits."""
    channels, height, width = data.shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU(), nn.Linear(64, data.classes))


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    plain = classification(build, torch.optim.Adam, recipe, data_dir)
    falls = LRSchedule(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85), steps=DECAYS)
    return replace(plain, sampler=bootstrap, schedule=falls)


SETUP = Setup(
    summary="bootstrapped digits",
    citation="ours",
    published="none",
    metric="accuracy",
    higher_is_better=True,
    recipes={"quick": Recipe("noisy_digits", 3, 16, 5e-3, 0.8, data_options=DataOptions(samples=SAMPLES))},
    task=task,
)
