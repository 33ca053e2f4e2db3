"""A user's own model, for bugs to be put beside: layers that a step may leave out."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.parts import classification
from benchmarks.bugs.own_parts import setup

LAYERS, WIDTH = 4, 64


class Skipping(nn.Module):
    """[n, c, h, w] -> logits, through layers of which each step trains about half (Huang et al. 2016)."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        channels, height, width = data.shape
        self.first = nn.Linear(channels * height * width, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, data.classes)

    def forward(self, images: Tensor) -> Tensor:
        state = self.first(images.flatten(1)).relu()
        for layer in self.layers:
            if not self.training or float(torch.rand(())) < 0.5:
                state = state + layer(state).relu() * (1.0 if self.training else 0.5)
        return self.last(state)


SETUP = setup(
    "layers that are left out at random",
    partial(classification, Skipping, partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-3)),
    0.02,
    7546,
    schedule="cosine",
)
