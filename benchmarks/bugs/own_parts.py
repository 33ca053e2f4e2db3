"""What users' own set-ups share, for bugs to be put beside: a net of one hidden layer, noisy digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from bench.models.data.options import DataOptions
from bench.models.setup import Recipe, Setup
from ddp.replica.task import Task

WIDTH = 64


def hidden(data: Any) -> nn.Module:
    """Build it: [n, c, h, w] -> logits."""
    channels, height, width = data.shape
    sizes = channels * height * width, WIDTH, data.classes
    return nn.Sequential(nn.Flatten(), nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:]))


def setup(
    summary: str,
    task: Callable[[Recipe, str], Task],
    lr: float,
    samples: int,
    *,
    target: float = 0.8,
    schedule: str = "constant",
    augment: bool = False,
) -> Setup:
    """Return a set-up of three epochs of noisy digits in batches of 16."""
    options = DataOptions(samples=samples)
    recipe = Recipe("noisy_digits", 3, 16, lr, target, schedule, augment=augment, data_options=options)
    return Setup(
        summary=summary,
        citation="ours",
        published="none",
        metric="accuracy",
        higher_is_better=True,
        recipes={"quick": recipe},
        task=task,
    )
