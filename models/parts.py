"""Parts shared by the set-ups: schedules, and the tasks of classifying images and of continuing text. Knows neither models
nor the numbers of recipes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import DataSet, data_set
from bench.models.setup import Recipe
from ddp.data import as_source, crop_and_flip
from ddp.replica.scalars import record_sum
from ddp.replica.task import Source, Task, Tensors

Build = Callable[[DataSet], nn.Module]
Optimizer = Callable[..., torch.optim.Optimizer]
"""(parameters, lr=...) -> optimizer, such as `torch.optim.Adam`."""
Loss = Callable[[nn.Module, Tensors], Tensor]
Evaluate = Callable[[nn.Module, Tensors], tuple[Tensor, Tensor]]
PADDING = 4
"""Maximum shift of images in pixels, in recipes with augmentation."""


def cosine(seen: float) -> float:
    """Fall from 1 to 0 along half a cosine (Loshchilov & Hutter 2017, without restarts)."""
    return 0.5 * (1.0 + math.cos(math.pi * min(max(seen, 0.0), 1.0)))


def steps(seen: float) -> float:
    """Return 1 for the first half of the samples, .1 until three quarters, then .01 (He et al. 2015, by samples)."""
    return 1.0 if seen < 0.5 else 0.1 if seen < 0.75 else 0.01


def warm_up(share: float, floor: float) -> Callable[[float], float]:
    """Return a schedule that rises linearly from 0 to 1 over the first `share` of all samples, then falls along half a
    cosine to `floor`."""

    def schedule(seen: float) -> float:
        if seen < share:
            return max(seen, 0.0) / share
        return floor + (1.0 - floor) * cosine((seen - share) / (1.0 - share))

    return schedule


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda seen: 1.0,
    "cosine": cosine,
    "steps": steps,
    "warm_up_10": warm_up(0.1, 0.0),
    "warm_up_20": warm_up(0.2, 1 / 30),
}
"""Name -> function of the fraction of all training samples seen, in [0, 1], that returns the factor on the learning rate.

`warm_up_10` is the schedule of vision transformers (Lee et al. 2021), `warm_up_20` that of gpt-nano: it ends at 1e-5 for
3e-4.
"""


def classifier(features: int, classes: int) -> nn.Linear:
    """Make the last layer with weights near zero, so that training starts from equal probabilities and a loss of
    ln(classes)."""
    linear = nn.Linear(features, classes)
    nn.init.normal_(linear.weight, std=0.01)
    nn.init.zeros_(linear.bias)
    return linear


def cross_entropy(model: nn.Module, batch: Tensors) -> Tensor:
    """Return the mean cross-entropy of (images, labels) or (tokens, following tokens): a scalar in nats."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many samples the logits [n, classes] classify as the labels [n]."""
    return (logits.argmax(1) == labels).sum()


def classified(model: nn.Module, batch: Tensors) -> Tensor:
    """Return the mean cross-entropy of (images, labels), and record the training `accuracy`."""
    images, labels = batch
    logits = model(images)
    record_sum("accuracy", len(labels), right, logits, labels)
    return F.cross_entropy(logits, labels)


def continued(model: nn.Module, batch: Tensors) -> Tensor:
    """Return the mean cross-entropy of (tokens, following tokens), and record it as `cross-entropy`."""
    return recorded("cross-entropy", cross_entropy(model, batch), len(batch[0]))


def recorded(name: str, loss: Tensor, samples: int) -> Tensor:
    """Return `loss`, a mean over samples, and record it as the training metric `name`."""
    record_sum(name, samples, _total, (loss.detach() * samples).view(1))
    return loss


def _total(values: Tensor) -> Tensor:
    """Return a sum in double precision, as the clock decides how many steps are added up at once."""
    return values.sum(dtype=torch.float64)


def accuracy(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """Return (sum of the cross-entropy, number of correctly classified samples) over (images, labels)."""
    images, labels = batch
    logits = model(images)
    return F.cross_entropy(logits, labels, reduction="sum"), right(logits, labels)


def token_entropy(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """Return (sum, sum): the mean cross-entropy per token in nats, summed over pieces of text, as both loss and metric."""
    total = cross_entropy(model, batch) * len(batch[0])  # all pieces have the same length
    return total, total


def classification(build: Build, optimizer: Optimizer, recipe: Recipe, data_dir: str) -> Task:
    """Return the task of classifying the recipe's images, with a model built for their shape.

    Raise ValueError for data or a schedule that is unknown or unsuitable. Files are read when the data is first used.
    """
    data = images_of(recipe, data_dir)
    if data.classes < 2:
        raise ValueError(
            f"data set {recipe.data} has one class, so there is nothing to tell apart and every answer is right; give it "
            "two or more (of images of your own, data.path is the folder that has a folder for each class)"
        )
    return task_on(data, build, optimizer, recipe, classified, accuracy)


def language(build: Build, optimizer: Optimizer, recipe: Recipe, data_dir: str) -> Task:
    """Return the task of continuing the recipe's text, with a model built for its vocabulary and length. Raise ValueError
    for data or a schedule that is unknown or unsuitable."""
    data = data_set(recipe.data, data_dir, recipe.data_options)
    if not data.is_text:
        raise ValueError(f"this model reads text, and data set {recipe.data} is of images; choose data.name=pydoc")
    if data.classes < 2:
        raise ValueError(f"data set {recipe.data} has one character throughout: nothing to learn; give it a text")
    return task_on(data, build, optimizer, recipe, continued, token_entropy)


def images_of(recipe: Recipe, data_dir: str) -> DataSet:
    """Return the recipe's data set. Raise ValueError if it does not contain images."""
    data = data_set(recipe.data, data_dir, recipe.data_options)
    if data.is_text:
        raise ValueError(
            f"this model sees images, and data set {recipe.data} is text, as its samples have one dimension; choose "
            "data.name=digits, or give rows of numbers the shape (1, 1, n)"
        )
    return data


def _load(name: str, data: DataSet) -> tuple[Source, Source]:
    """Return (training source, evaluation source). Raise ValueError, in one line, if `data` loads anything else."""
    loaded: Any = data.load()
    if not isinstance(loaded, (tuple, list)) or len(loaded) != 2:
        raise ValueError(f"data set {name}: load must return two data sets, what is trained on and evaluated on")
    try:
        return as_source(loaded[0]), as_source(loaded[1])
    except ValueError as error:
        raise ValueError(f"data set {name}: {error}") from error


def task_on(data: DataSet, build: Build, optimizer: Optimizer, recipe: Recipe, loss: Loss, evaluate: Evaluate) -> Task:
    """Return the task of training the model that `build` makes for `data`. Raise ValueError for an unknown schedule, or for
    augmentation of text."""
    if recipe.schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {recipe.schedule!r}; choose one of {', '.join(SCHEDULES)}")
    if recipe.augment and data.is_text:
        raise ValueError(f"data set {recipe.data} is text: only images are augmented")
    load = cache(partial(_load, recipe.data, data))
    return Task(
        model=lambda: build(data),
        optimizer=partial(optimizer, lr=recipe.lr),
        loss=loss,
        evaluate=evaluate,
        train_data=lambda: load()[0],
        eval_data=lambda: load()[1],
        schedule=SCHEDULES[recipe.schedule],
        augment=crop_and_flip(PADDING) if recipe.augment else None,
        static_graph=True,
    )
