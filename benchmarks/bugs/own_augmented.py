"""A user's own model, for bugs to be put beside: augmented images, two groups of parameters, half a cosine."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from bench.models.parts import classification
from benchmarks.bugs.own_parts import setup

DECAY = 0.3
"""Of matrices; other parameters have none, and half the rate."""


def build(data: Any) -> nn.Module:
    """Build it: [n, c, h, w] -> logits."""
    channels, height, width = data.shape
    first = nn.Conv2d(channels, 8, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(8 * height * width, data.classes))


def in_groups(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Make an optimizer that decays matrices alone."""
    matrices, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0, "lr": lr / 2}]
    return torch.optim.AdamW(groups, lr=lr)


SETUP = setup(
    "a convolution on augmented digits",
    partial(classification, build, in_groups),
    3e-3,
    7546,
    target=0.5,
    schedule="cosine",
    augment=True,
)
