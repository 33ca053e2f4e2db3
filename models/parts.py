"""What set-ups have in common: schedules, and the tasks of classifying images and of continuing text. Knows no model and no
recipe's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import DataSet, data_set
from bench.models.setup import Recipe
from ddp.data import as_source, crop_and_flip
from ddp.replica.task import Source, Task, Tensors


def constant(seen: float) -> float:
    """1 throughout."""
    return 1.0


def cosine(seen: float) -> float:
    """From 1 down to 0 along half a cosine (Loshchilov & Hutter 2017, without restarts)."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(seen, 0.0), 1.0)))


def steps(seen: float) -> float:
    """1, a tenth from half of the samples on, a hundredth from three quarters on (He et al. 2015, in samples)."""
    return 1.0 if seen < 0.5 else 0.1 if seen < 0.75 else 0.01


def warm_up(share: float, floor: float) -> Callable[[float], float]:
    """Linearly from 0 to 1 over the first `share` of all samples, then along half a cosine down to `floor`."""

    def schedule(seen: float) -> float:
        if seen < share:
            return max(seen, 0.0) / share
        return floor + (1.0 - floor) * cosine((seen - share) / (1.0 - share))

    return schedule


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "cosine": cosine,
    "steps": steps,
    "warm_up_10": warm_up(0.1, 0.0),
    "warm_up_20": warm_up(0.2, 1 / 30),
}
"""Name -> function of the fraction of all training samples seen, in [0, 1], to the factor on the learning rate.

`warm_up_10` is that of vision transformers (Lee et al. 2021), `warm_up_20` that of gpt-nano: from 3e-4 it ends at 1e-5.
"""


def classifier(features: int, classes: int) -> nn.Linear:
    """The last layer, near zero, so that training starts from even odds, a loss of ln(classes)."""
    linear = nn.Linear(features, classes)
    nn.init.normal_(linear.weight, std=0.01)
    nn.init.zeros_(linear.bias)
    return linear


PADDING = 4
"""Pixels that images are shifted by at most, where a recipe augments them."""
Loss = Callable[[nn.Module, Tensors], Tensor]
Evaluate = Callable[[nn.Module, Tensors], tuple[Tensor, Tensor]]


def cross_entropy(model: nn.Module, batch: Tensors) -> Tensor:
    """Mean cross-entropy of (images, labels) or (tokens, the ones that follow), a scalar in nats."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def accuracy(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """(sum of the cross-entropy, number of samples classified rightly) over (images, labels)."""
    images, labels = batch
    logits = model(images)
    return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) == labels).sum()


def token_entropy(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """Twice the sum over pieces of text of their mean cross-entropy per token, nats: it is loss and metric in one."""
    total = cross_entropy(model, batch) * len(batch[0])  # pieces are of one length
    return total, total


def classification(
    model: Callable[[DataSet], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    recipe: Recipe,
    data_dir: str,
) -> Task:
    """The task of classifying the recipe's images with `model`, built for their shape.

    ValueError for data or a schedule that is unknown or does not fit; files are read when the data is first asked for, once.
    """
    data = images_of(recipe, data_dir)
    if data.classes < 2:
        raise ValueError(
            f"data set {recipe.data} has one class, so there is nothing to tell apart and every answer is right; give it "
            "two or more (of images of your own, data.path is the folder that has a folder for each class)"
        )
    return task_on(data, model, optimizer, recipe, cross_entropy, accuracy)


def language(
    model: Callable[[DataSet], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    recipe: Recipe,
    data_dir: str,
) -> Task:
    """The task of continuing the recipe's text with `model`, built for its alphabet and length. ValueError as above."""
    data = data_set(recipe.data, data_dir, recipe.data_options)
    if not data.is_text:
        raise ValueError(f"this model reads text, and data set {recipe.data} is of images; choose data.name=pydoc")
    if data.classes < 2:
        raise ValueError(
            f"data set {recipe.data} has one character throughout, so there is nothing to learn; give it a text"
        )
    return task_on(data, model, optimizer, recipe, cross_entropy, token_entropy)


def images_of(recipe: Recipe, data_dir: str) -> DataSet:
    """The recipe's data set, which must be of images: ValueError otherwise."""
    data = data_set(recipe.data, data_dir, recipe.data_options)
    if data.is_text:
        raise ValueError(f"this model sees images, and data set {recipe.data} is text; choose data.name=digits")
    return data


def _loaded(name: str, data: DataSet) -> tuple[Source, Source]:
    """What is trained and evaluated on, whatever form of data set each is. ValueError, in one line, for what is none."""
    found: Any = data.load()
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ValueError(
            f"data set {name}: load must return two data sets, what is trained on and what is evaluated on"
        )
    try:
        return as_source(found[0]), as_source(found[1])
    except ValueError as error:
        raise ValueError(f"data set {name}: {error}") from error


def task_on(
    data: DataSet,
    model: Callable[[DataSet], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    recipe: Recipe,
    loss: Loss,
    evaluate: Evaluate,
) -> Task:
    """The task of training `model`, built for `data`. ValueError for an unknown schedule, or text to be augmented."""
    if recipe.schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {recipe.schedule!r}; choose one of {', '.join(SCHEDULES)}")
    if recipe.augment and data.is_text:
        raise ValueError(f"data set {recipe.data} is text: only images are augmented")
    load = cache(partial(_loaded, recipe.data, data))
    return Task(
        model=lambda: model(data),
        optimizer=optimizer,
        loss=loss,
        evaluate=evaluate,
        train_data=lambda: load()[0],
        eval_data=lambda: load()[1],
        schedule=SCHEDULES[recipe.schedule],
        augment=crop_and_flip(PADDING) if recipe.augment else None,
    )
