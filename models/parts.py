"""What set-ups have in common: schedules, and the task of classifying images. Knows no model and no recipe's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddp.runtime.task import Task, Tensors
from models.data import DataSet, data_set
from models.setup import Recipe


def constant(seen: float) -> float:
    """1 throughout."""
    return 1.0


def cosine(seen: float) -> float:
    """From 1 down to 0 along half a cosine (Loshchilov & Hutter 2017, without restarts)."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(seen, 0.0), 1.0)))


def steps(seen: float) -> float:
    """1, a tenth from half of the samples on, a hundredth from three quarters on (He et al. 2015, in samples)."""
    return 1.0 if seen < 0.5 else 0.1 if seen < 0.75 else 0.01


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": constant, "cosine": cosine, "steps": steps}
"""Name -> function of the fraction of all training samples seen, in [0, 1], to the factor on the learning rate."""


def cross_entropy(model: nn.Module, batch: Tensors) -> Tensor:
    """Mean cross-entropy of (images, labels), a scalar in nats."""
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def accuracy(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """(sum of the cross-entropy, number of samples classified rightly) over (images, labels)."""
    images, labels = batch
    logits = model(images)
    return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) == labels).sum()


def classification(
    model: Callable[[DataSet], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    recipe: Recipe,
    data_dir: str,
) -> Task:
    """The task of classifying the recipe's data set with `model`, built for its shape.

    ValueError for an unknown data set or schedule; files are read when the data is first asked for, once.
    """
    data = data_set(recipe.data, data_dir, recipe.data_options)
    if recipe.schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {recipe.schedule!r}; choose one of {', '.join(SCHEDULES)}")
    load = cache(data.load)
    return Task(
        model=lambda: model(data),
        optimizer=optimizer,
        loss=cross_entropy,
        evaluate=accuracy,
        train_data=lambda: load()[0],
        eval_data=lambda: load()[1],
        schedule=SCHEDULES[recipe.schedule],
    )
