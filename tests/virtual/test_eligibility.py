"""Which steps many ranks at once would train otherwise: they are trained rank by rank, or refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddp.core.errors import EngineError
from ddp.core.settings.virtual_time import VirtualTime
from ddp.data import TensorSource
from ddp.replica.task import Task
from ddp.virtual import engine
from ddp.virtual.eligibility import unfit
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.virtual.test_own_state import job_of

CALLS = np.zeros(1)


def frozen() -> nn.Module:
    return toy.net(False).requires_grad_(False)


class Listed(nn.Module):
    """A model whose penalty reads its parameters from a list, which a functional call does not replace."""

    def __init__(self) -> None:
        super().__init__()
        self.net = toy.net(False)
        self.listed = [list(self.net.parameters())]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)


def penalised(model: Any, batch: Any) -> Tensor:
    return toy.loss(model, batch) + 2e-3 * torch.stack([p.pow(2).sum() for p in model.listed[0]]).sum()


class Reversed(nn.Module):
    """Reverses a gradient behind a layer that begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 12), nn.Linear(12, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: -gradient)
        return self.head(torch.tanh(hidden))


class Stateful(nn.Module):
    """Scales its output by what it counts."""

    counted: ClassVar[list[int]] = [0]

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net, self.how = toy.net(False), how
        self.tensor, self.array, self.iterator = [torch.zeros(1)], np.zeros(1), itertools.count()

    def forward(self, inputs: Tensor) -> Tensor:
        match self.how:
            case "tensor":
                self.tensor[0] = self.tensor[0] + 1
            case "array":
                self.array += 1
            case "iterator":
                next(self.iterator)
            case "class":
                self.counted[0] += 1
            case "global":
                CALLS[0] += 1
        return self.net(inputs)


def clamped(model: nn.Module, batch: Any) -> Tensor:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)
    return toy.loss(model, batch)


class Short(nn.Module):
    """Has a parameter that only short batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.shift = toy.net(False), nn.Parameter(torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs) + self.shift if len(inputs) < 5 else self.net(inputs)


def task(**parts: Any) -> Task:
    return replace(toy.task(), **parts)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (partial(task, model=frozen), "some of its parameters are frozen"),
        (partial(task, model=Listed, loss=penalised), "gradients are others"),
        (partial(task, model=Reversed), "gradients are others"),
        (partial(task, model=partial(Stateful, "tensor")), "changes the variable tensor"),
        (partial(task, model=partial(Stateful, "array")), "changes the variable array"),
        (partial(task, model=partial(Stateful, "iterator")), "changes the variable iterator"),
        (partial(task, model=partial(Stateful, "class")), "changes the variable Stateful.counted"),
        (partial(task, model=partial(Stateful, "global")), "CALLS"),
        (partial(task, loss=clamped), "changes parameters"),
        (partial(task, model=Short), "has no gradient"),
        (task, ""),
        (partial(task, model=partial(Stateful, "")), ""),
    ],
)
def test_a_step_that_many_ranks_at_once_would_do_otherwise_is_found(
    play: Play, made: Callable[[], Task], reason: str
) -> None:
    """From sixteen ranks on, something else was trained, without a word."""
    found = unfit(job_of(play, made))
    assert reason in found if reason else not found


def test_a_frozen_model_is_refused_by_many_ranks_as_by_few(play: Play) -> None:
    for size in (3, 16):
        with pytest.raises(EngineError, match="does not require grad"):
            play("sync", "nccl", partial(task, model=frozen), world_size=size, epochs=1, engine=engine)


def test_data_with_an_empty_column_are_trained_at_once(play: Play) -> None:
    inputs, labels = toy.data()
    given = partial(TensorSource, inputs, labels, torch.zeros(len(labels), 0))
    virtual = VirtualTime(path="vectorised")
    assert play("sync", "nccl", partial(task, train_data=given), world_size=3, epochs=1, engine=engine, virtual=virtual)


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_ranks_without_samples_report_the_same_on_both_paths(play: Play, policy: str) -> None:
    """There are more ranks than samples in a step; those without any reported a checksum of nothing."""
    few = partial(toy.task, samples=3)

    def kinds(path: str) -> Counter[str]:
        virtual = VirtualTime(path=path)
        played = play(policy, "nccl", few, world_size=4, batch_size=2, epochs=1, engine=engine, virtual=virtual)
        return Counter(type(record).__name__ for record in played.records)

    assert kinds("sequential") == kinds("vectorised")
