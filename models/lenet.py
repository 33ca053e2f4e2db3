"""`lenet`: LeNet-5 with batch norm and ReLU on handwritten digits.

Deviations from the paper (LeCun et al. 1998). From the published set-up: ReLU instead of scaled tanh; batch norm after each
convolution; Adam at a constant rate. Further: a linear layer with cross-entropy instead of radial basis functions with their
loss; max pooling instead of trainable subsampling; every map of the second convolution sees all maps of the first; no bias
in convolutions, because batch norm has one; PyTorch's initial values; 28x28 pixels, padded by the first convolution, instead
of 32x32. The published set-up does not give the widths: they are the paper's.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from bench.models.data import DataSet
from bench.models.parts import classification
from bench.models.setup import Recipe, Setup

SMALL = 16
"""Images below this height or width are padded before the second convolution too: its 5x5 kernel would not fit otherwise."""


def build(data: DataSet) -> nn.Module:
    """Build the model: [n, c, h, w] -> logits [n, classes]. 61,728 parameters for 1x28x28 pixels and 10 classes, 21,408 for
    1x8x8. Raise ValueError for images that are too small."""
    channels, height, width = data.shape
    padding = 2 if min(height, width) < SMALL else 0
    pooled = [(side // 2 + 2 * padding - 4) // 2 for side in (height, width)]
    if not all(pooled):
        raise ValueError(
            f"images of {height}x{width} pixels are too small for lenet, which halves them twice: 4x4 or more"
        )
    return nn.Sequential(
        *_stage(channels, 6, padding=2),
        *_stage(6, 16, padding),
        nn.Flatten(),
        nn.Linear(16 * pooled[0] * pooled[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, data.classes),
    )


def _stage(channels: int, out: int, padding: int) -> tuple[nn.Module, ...]:
    """Make a stage: [n, channels, h, w] -> [n, out, h/2, w/2] with padding 2."""
    return nn.Conv2d(channels, out, 5, padding=padding, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)


SETUP = Setup(
    summary="LeNet-5 with batch norm and ReLU on handwritten digits",
    citation="LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998",
    published="test accuracy .99 on MNIST after 5 epochs (Adam 1e-3, batch 64); `quick`: padded twice for 8x8 digits",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe(data="noisy_digits", epochs=3, batch_size=32, lr=6e-3, target=0.95, schedule="cosine"),
        "published": Recipe(data="mnist", epochs=5, batch_size=64, lr=1e-3, target=0.99),
    },
    task=partial(classification, build, torch.optim.Adam),
)
