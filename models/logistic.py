"""`logistic`: softmax regression on handwritten digits. Convex: whatever goes wrong here is the engine's fault.

Deviations from the cited study, all from the published set-up: a softmax over the ten classes instead of one output per
class with squared error; Adam at a constant rate, from values near zero, instead of the pseudo-inverse.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn

from bench.models.data import DataSet
from bench.models.parts import classification, classifier
from bench.models.setup import Recipe, Setup


def build(data: DataSet) -> nn.Module:
    """Build the model: [n, c, h, w] -> logits [n, classes]. 7,850 parameters for 1x28x28 pixels and 10 classes, 650 for
    1x8x8."""
    return nn.Sequential(nn.Flatten(), classifier(math.prod(data.shape), data.classes))


SETUP = Setup(
    summary="softmax regression on handwritten digits",
    citation="LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998",
    published="test accuracy .92 on MNIST after 5 epochs (Adam 1e-3, batch 64); `quick`: 64-10 on noisy digits",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe(data="noisy_digits", epochs=3, batch_size=16, lr=1e-2, target=0.57, schedule="cosine"),
        "published": Recipe(data="mnist", epochs=5, batch_size=64, lr=1e-3, target=0.92),
    },
    task=partial(classification, build, torch.optim.Adam),
)
