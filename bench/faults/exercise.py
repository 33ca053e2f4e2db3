"""The training task of the matrix: a small classifier whose steps take a few milliseconds. Ranks import it by name."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor, nn

from ddp.data.source import TensorSource
from ddp.replica.task import Task, Tensors

SAMPLES, STEP_S = 480, 0.004


def task() -> Task:
    """Return the task: 480 points in 6 dimensions, trained by plain SGD."""
    return Task(
        model=net,
        optimizer=partial(torch.optim.SGD, lr=0.05),
        loss=loss,
        evaluate=evaluate,
        train_data=partial(TensorSource, *points(SAMPLES)),
        eval_data=partial(TensorSource, *points(120)),
        schedule=constant,
    )


def points(samples: int) -> tuple[Tensor, Tensor]:
    """Return inputs [samples, 6] and labels [samples]."""
    inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs.sum(dim=1) > 0).long()


def net() -> nn.Module:
    """Return the model."""
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))


def loss(model: nn.Module, batch: Tensors) -> Tensor:
    """Return the mean loss, after a sleep in which other ranks may use the core."""
    time.sleep(STEP_S)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """Return the sum of the loss and the number of correct answers."""
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1], reduction="sum"), (logits.argmax(1) == batch[1]).sum()


def constant(fraction: float) -> float:
    """Return the factor on the learning rate, always 1."""
    return 1.0
