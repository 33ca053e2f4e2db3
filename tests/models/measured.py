"""What tests of models measure: quick tasks, shapes of data, parameters and layers."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from bench import models
from bench.models.data import DataOptions, data_set
from ddp.replica.task import Task

DIGITS, MNIST = data_set("digits"), data_set("mnist")
CIFAR = replace(MNIST, shape=(3, 32, 32))


def quick(name: str) -> Task:
    """The quick task; of text, short pieces."""
    recipe = models.load(name).recipes["quick"]
    if recipe.data == "toy_language":
        recipe = replace(recipe, data_options=DataOptions(seq_len=32))
    return models.make_task(name, recipe, "")


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def shapes_of(model: nn.Module, layers: nn.Sequential, x: Tensor) -> list[tuple[int, ...]]:
    """What each of the layers makes of `x`, without the number of samples."""
    shapes: list[tuple[int, ...]] = []
    for layer in layers:
        layer.register_forward_hook(lambda _module, _inputs, out: shapes.append(tuple(out.shape[1:])))
    model(x)
    return shapes
