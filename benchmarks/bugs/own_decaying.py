"""A user's own set-up, for bugs to be put beside: a callback makes the rate smaller with every epoch."""

from __future__ import annotations

from dataclasses import replace

import torch

from bench.models.parts import classification
from bench.models.setup import Recipe
from benchmarks.bugs.own_parts import hidden, setup
from ddp.replica.handle import WorkerHandle
from ddp.replica.task import Task

FACTOR = 0.3
"""Of the rate of an epoch, to that of the one before."""


def smaller(epoch: int, handle: WorkerHandle) -> None:
    """Multiply the rate, but for the first epoch."""
    if epoch:
        handle.scale_lr(FACTOR)


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    return replace(classification(hidden, torch.optim.Adam, recipe, data_dir), epoch_callback=smaller)


SETUP = setup("digits, a rate that falls with epochs", task, 5e-3, 4312)
