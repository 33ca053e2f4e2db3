"""`vit`: a small vision transformer, 9 layers of 192 on patches of 4x4 pixels.

Sizes and training are those of the plain ViT in Lee et al. 2021, who trained it from scratch on small images. Deviations:
only crops and flips of their augmentation (no CutMix, Mixup, AutoAugment, random erasing, repetition); no label smoothing;
no stochastic depth.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from bench.models.attention import STD, Layer, initialise
from bench.models.data import DataOptions, DataSet
from bench.models.parts import classification
from bench.models.setup import Recipe, Setup

LAYERS, HEADS, WIDTH, HIDDEN, PATCH = 9, 12, 192, 384, 4


class ViT(nn.Module):
    """[n, c, h, w] -> logits [n, classes]. Pixels of h and w beyond the last whole patch are not used.

    2,697,610 parameters for 3x32x32 pixels and 10 classes. Raises ValueError for images smaller than one patch."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        channels, height, width = data.shape
        patches = (height // PATCH) * (width // PATCH)
        if not patches:
            raise ValueError(f"images of {height}x{width} pixels are smaller than a patch of {PATCH}x{PATCH}")
        self.patches = nn.Conv2d(channels, WIDTH, PATCH, PATCH)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH) * STD)
        self.places = nn.Parameter(torch.randn(1, patches + 1, WIDTH) * STD)
        self.layers = nn.Sequential(*(Layer(WIDTH, HEADS, HIDDEN, dropout=0.0, causal=False) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, data.classes)
        initialise(self, LAYERS)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, computed from the class token."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(images), -1, -1), patches], 1) + self.places
        out: Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return out


SETUP = Setup(
    summary="a small vision transformer: 9 layers of 192 on patches of 4x4 pixels",
    citation="Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; sizes: Lee et al., arXiv:2112.13492, 2021",
    published="no value without the augmentation that it needs: Lee et al. have .9358 on CIFAR-10 with it",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe("noisy_digits", 3, 32, 3e-4, 0.88, "warm_up_10", data_options=DataOptions(samples=7546)),
        "published": Recipe("cifar10", 100, 128, lr=1e-3, target=0.8, schedule="warm_up_10", augment=True),
    },
    task=partial(classification, ViT, partial(torch.optim.AdamW, weight_decay=0.05)),  # on everything, as published
)
