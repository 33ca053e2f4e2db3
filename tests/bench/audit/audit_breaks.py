"""Tasks that audits are tried on, and ways to break what they look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from ddp.data.augment import crop_and_flip
from ddp.data.source import TensorSource
from ddp.replica.task import Task
from tests.runtime import toy

ADAM: Callable[[], Task] = partial(toy.task, lr=0.01, norm=True, optimizer="Adam", schedule=toy.rising_schedule)


def images(samples: int = 120) -> TensorSource:
    generator = torch.Generator().manual_seed(5)
    return TensorSource(torch.randn(samples, 1, 8, 8, generator=generator), torch.arange(samples) % 2)


def shifted() -> Task:
    """With augmented images."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    sources = {"train_data": images, "eval_data": partial(images, 40)}
    return replace(toy.task(), model=net, augment=crop_and_flip(4), **sources)


Break = Callable[[pytest.MonkeyPatch], None]


def wrapped(owner: Any, name: str, broken: Callable[..., Any]) -> Break:
    """`broken(original, self, *arguments)` in place of a method."""
    original = getattr(owner, name)
    return lambda patch: patch.setattr(
        owner, name, lambda self, *a, **named: broken(partial(original, self), self, *a, **named)
    )


def twice(step: Any, self: Any, *batch: Any) -> Any:
    step(*batch)
    return step(*batch)


def best(evaluate: Any, self: Any, *part: Any) -> Any:
    samples, loss, metric, content = evaluate(*part)
    return samples, loss, metric + 1, content
