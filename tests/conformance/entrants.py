"""Who is held to the oracle in the tests, and on what: models, optimizers, bundled data. How: `bench.prove`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

from bench import models
from bench.models.data.options import PLAIN, DataOptions
from bench.models.setup import Recipe
from bench.prove import ranks
from bench.prove.entrants import OURS, TORCH, Entrant, ProofEntry
from bench.prove.oracle import OracleCourse
from bench.prove.ranks import trained
from ddp.core.policies.sync import Sync
from ddp.data.source import TensorSource
from ddp.replica.norms import least_samples
from ddp.replica.task import Task
from tests.runtime import toy
from tests.spread import ASKED

__all__ = ["ENTRANTS", "OPTIMIZERS", "TORCH", "Entrant", "cells", "course", "save_data", "train", "trained"]

ENTRANTS = {
    "nccl_sync/memory": Entrant("nccl", "memory", OURS, exact=4),
    "nccl_sync/gloo": Entrant("nccl", "gloo", OURS, exact=2),
    "zero1": Entrant("zero1", "memory", OURS, exact=4),
    "zero2": Entrant("zero2", "memory", OURS, exact=4),
    "zero3": Entrant("zero3", "memory", replace(OURS, flat=False), exact=4),
    "torch_ddp": Entrant("torch_ddp", "gloo", TORCH, exact=2),
    "torch_zero1": Entrant("torch_zero1", "gloo", TORCH, exact=2),
    "torch_fsdp": Entrant("torch_fsdp", "gloo", replace(TORCH, flat=False), exact=2),
    "torch_fsdp/groups": Entrant(
        "torch_fsdp", "gloo", replace(TORCH, flat=False), exact=2, module="tests.conformance.groups"
    ),
}

LENGTH, MOST = 16, 2000
"""Characters of a piece of text; samples that are enough for every course."""
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.005, momentum=0.9, weight_decay=1e-4),
    "AdamW": partial(torch.optim.AdamW, lr=3e-4),
}


def save_data(folder: Path) -> Path:
    """The bundled data of the quick recipes in files: to load them from there, a rank need not import what brings them."""
    for model in ("mlp", "gpt_nano"):
        source = models.make_task(model, _recipe(model), "data").train_data()
        torch.save(list(source.batch(torch.arange(min(len(source), MOST)))), folder / f"{_recipe(model).data}.pt")
    return folder


def _recipe(model: str) -> Recipe:
    """The quick one; of text, short pieces, and one data set for all images."""
    recipe = models.load(model).recipes["quick"]
    if recipe.data == "toy_language":
        return replace(recipe, data_options=DataOptions(seq_len=LENGTH))
    return replace(recipe, data="digits", data_options=PLAIN)


@cache
def _data(path: Path, dtype: torch.dtype) -> TensorSource:
    inputs, targets = torch.load(path)
    return TensorSource(inputs.to(dtype) if inputs.is_floating_point() else inputs, targets)


def make_task(model: str, optimizer: str, data: Path, dtype: torch.dtype = torch.float32) -> Task:
    """A model of the matrix with one of the optimizers, on the bundled data."""
    recipe = _recipe(model)
    task = models.make_task(model, recipe, "data")
    source = partial(_data, data / f"{recipe.data}.pt", dtype)
    model_of = task.model
    changed = {"model": lambda: model_of().to(dtype), "train_data": source, "eval_data": source}
    return replace(task, optimizer=OPTIMIZERS[optimizer], **changed)


def course(model: str, optimizer: str, world_size: int, data: Path, exact: bool = True) -> OracleCourse:
    """`DIGESTED` steps with four samples for each rank; in the last one, one or two, or with batch norm none for a rank.

    Where the result is not to be `exact`, in double precision: one rounding of float32 may switch a ReLU of the ResNet, and
    is 2e-4 after ten steps then, which says nothing of the engine.
    """
    tail, dtype = 2 * world_size + 1, torch.float32 if exact else torch.float64
    task = partial(make_task, model, optimizer, data, dtype)
    return OracleCourse(task, world_size, batch=4, steps=DIGESTED, tail=tail, least=_least(model))


@cache
def _least(model: str) -> int:
    return least_samples(models.make_task(model, _recipe(model), "data").model())


def normed_task() -> Task:
    """A perceptron with batch norm, which cannot be trained on one sample; in double precision."""
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(14, 6, generator=draw, dtype=torch.float64), torch.arange(14) % 2
    source = partial(TensorSource, inputs, targets)
    return replace(toy.task(norm=True), model=_normed, train_data=source, eval_data=source)


def _normed() -> nn.Module:
    return toy.net(True).double()


WHOLE = [name for name in ENTRANTS if "all" in ASKED or name in ASKED]
"""Engines of which all cells are tried, and then no others."""
DIGESTED = 10 if WHOLE else 5
"""Steps after which ranks are compared; moments of optimizers count from the second on."""


def train(entries: Sequence[tuple[Entrant, OracleCourse]], folder: Path, every_step: bool = True) -> None:
    """Have all of them trained, one after the other, on ranks that are started once; `trained` reads the results."""
    ranks.train([ProofEntry(*entry, Sync(), every_step=every_step) for entry in entries], folder)


def cells(names: Iterable[str] = models.MODELS) -> list[tuple[str, str]]:
    """Every model with every optimizer."""
    return list(itertools.product(names, OPTIMIZERS))
