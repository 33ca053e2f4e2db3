"""A user's own set-up, for bugs to be put beside: a sampler, and a scheduler of PyTorch's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bench.models.parts import classification
from bench.models.setup import Recipe
from benchmarks.bugs.own_parts import hidden, setup
from ddp import LRSchedule
from ddp.replica.task import Task

SAMPLES, DECAYS = 4312, 24


def bootstrap(epoch: int) -> Tensor:
    """Draw as many samples as there are, with replacement."""
    return torch.randint(0, SAMPLES, (SAMPLES,))


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    plain = classification(hidden, torch.optim.Adam, recipe, data_dir)
    falls = LRSchedule(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85), steps=DECAYS)
    return replace(plain, sampler=bootstrap, schedule=falls)


SETUP = setup("bootstrapped digits", task, 5e-3, SAMPLES)
