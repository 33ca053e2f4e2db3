"""A user's own set-up, for bugs to be put beside: noise that each reading draws, an evaluation in means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.parts import classification
from bench.models.setup import Recipe
from benchmarks.bugs.own_parts import hidden, setup
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


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task."""
    plain = classification(hidden, torch.optim.Adam, recipe, data_dir)
    noisy = lambda: as_source(Noisy(plain.train_data()))  # noqa: E731
    return replace(plain, train_data=noisy, evaluate=means, means=True)


SETUP = setup("digits with noise of their own", task, 5e-3, SAMPLES)
