"""A user's own set-up, for bugs to be put beside: noise that each reading draws, an evaluation in means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data.options import DataOptions
from bench.models.parts import classification
from bench.models.setup import Recipe, Setup
from ddp.data import as_source
from ddp.replica.task import Task, Tensors

SAMPLES, NOISE = 4312, 0.3


class Noisy(torch.utils.data.Dataset[Any]):
    """Samples of a source, with noise of their own."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = self._source.batch(torch.tensor([index]))
        return images[0] + NOISE * torch.randn(images[0].shape), labels[0]


def means(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """Return mean loss and accuracy of a batch."""
    images, labels = batch
    logits = model(images)
    return F.cross_entropy(logits, labels), (logits.argmax(1) == labels).double().mean()


def build(data: Any) -> nn.Module:
    """Build it: [n, c, h, w] -> logits."""
    channels, height, width = data.shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU(), nn.Linear(64, data.classes))


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    plain = classification(build, torch.optim.Adam, recipe, data_dir)
    noisy = lambda: as_source(Noisy(plain.train_data()))  # noqa: E731
    return replace(plain, train_data=noisy, evaluate=means, means=True)


SETUP = Setup(
    summary="digits with noise of their own",
    citation="ours",
    published="none",
    metric="accuracy",
    higher_is_better=True,
    recipes={"quick": Recipe("noisy_digits", 3, 16, 5e-3, 0.8, data_options=DataOptions(samples=SAMPLES))},
    task=task,
)
