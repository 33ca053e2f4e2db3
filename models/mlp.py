"""`mlp`: one hidden layer of 256 units on handwritten digits. The smallest model that can go wrong interestingly."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from bench.models.data import DataSet
from bench.models.parts import classification
from bench.models.setup import Recipe, Setup


def build(data: DataSet) -> nn.Module:
    """Build pixels-256-classes: [n, c, h, w] -> logits [n, classes]. 784-256-10 on MNIST: 203,530 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), 256), nn.ReLU(), nn.Linear(256, data.classes))


SETUP = Setup(
    summary="784-256-10 perceptron on handwritten digits",
    citation="LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998",
    published="test accuracy .975 on MNIST after 5 epochs (Adam 1e-3, batch 64); `quick`: 64-256-10 on noisy digits",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe(data="noisy_digits", epochs=4, batch_size=16, lr=8e-3, target=0.958, schedule="cosine"),
        "published": Recipe(data="mnist", epochs=5, batch_size=64, lr=1e-3, target=0.975),
    },
    task=partial(classification, build, torch.optim.Adam),
)
