"""Small tasks for real processes. Functions are importable by name, so that ranks can call them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ddp.data.source import TensorSource
from ddp.replica.task import Task, Tensors
from tests.policies import accepted

SAMPLES = 203


class Spy(TensorSource):
    """Writes down which samples were asked for, one line a batch, in a file of this process."""

    folder: Path

    def to(self, device: torch.device) -> Spy:
        return self

    def batch(self, indices: Tensor) -> Tensors:
        with (self.folder / f"served-{os.getpid()}.txt").open("a") as file:
            file.write(" ".join(str(int(i)) for i in indices) + "\n")
        return super().batch(indices)


def data(samples: int = SAMPLES, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 6, generator=generator)
    return inputs, (inputs.sum(dim=1) > 0).long()


def source(folder: Path | None, samples: int) -> TensorSource:
    if folder is None:
        return TensorSource(*data(samples))
    spy = Spy(*data(samples))
    spy.folder = folder
    return spy


def net(norm: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), *([nn.BatchNorm1d(12)] if norm else []), nn.Tanh(), nn.Linear(12, 2))


def loss(model: nn.Module, batch: Tensors) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1], reduction="sum"), (logits.argmax(1) == batch[1]).sum()


def flat_schedule(fraction: float) -> float:
    return 1.0


def task(
    lr: float = 0.1,
    norm: bool = False,
    folder: Path | None = None,
    samples: int = SAMPLES,
    optimizer: str = "SGD",
    schedule: Callable[[float], float] = flat_schedule,
) -> Task:
    """A classifier of 203 points in 6 dimensions."""
    return Task(
        model=partial(net, norm),
        optimizer=partial(getattr(torch.optim, optimizer), lr=lr),
        loss=loss,
        evaluate=evaluate,
        train_data=partial(source, folder, samples),
        eval_data=partial(TensorSource, *data(100)),
        schedule=schedule,
    )


def drawn() -> Task:
    """Points that are split by numbers of the global generators, from which all other parts draw before."""
    plain, points, first = task(), data(SAMPLES + 40), torch.randperm(SAMPLES + 40)

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        torch.rand(()), np.random.rand()
        return torch.optim.SGD(parameters, lr=0.1)

    @cache
    def split() -> tuple[TensorSource, TensorSource]:
        places = first[torch.randperm(len(first))][np.random.permutation(len(first))]
        one, other = ([part[some] for part in points] for some in (places[:SAMPLES], places[SAMPLES:]))
        return TensorSource(*one), TensorSource(*other)

    return replace(plain, optimizer=optimizer, train_data=lambda: split()[0], eval_data=lambda: split()[1])


def rising_schedule(fraction: float) -> float:
    return 0.1 + fraction


class Odd(nn.Module):
    """What a model may also hold: a mask of infinities, constant tables, a boolean, a layer that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle = net(True), nn.Linear(3, 3)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        self.register_buffer("table", torch.linspace(0.1, 0.9, 101))
        self.register_buffer("places", torch.arange(5).to(torch.uint16))
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("ema", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.body(inputs)
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * logits.detach().mean().view(1)  # another tensor, as many models do
        return torch.as_tensor(logits)


class Summed(nn.Module):
    """Adds two weights, of which autograd makes one gradient for both; `apart`: and copies it."""

    def __init__(self, apart: bool = False) -> None:
        super().__init__()
        self.apart = apart
        self.first, self.second = (nn.Linear(6, 12, bias=False) for _ in range(2))
        self.head = nn.Linear(12, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        second = self.second.weight.view(-1)
        weight = self.first.weight.view(-1) + (second * 1.0 if self.apart else second)
        return torch.as_tensor(self.head(nn.functional.linear(inputs, weight.view(12, 6)).tanh()))


def summed(apart: bool = False) -> Task:
    return replace(task(), model=partial(Summed, apart))


class Lowest(nn.Module):
    """Remembers the lowest input, as an observer of quantisation does, and a mask of infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(False)
        self.register_buffer("lowest", torch.tensor(torch.inf))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.lowest.copy_(torch.minimum(self.lowest, inputs.min()))
        return torch.as_tensor(self.net(inputs))


def odd_task(lr: float = 0.1) -> Task:
    return replace(task(), model=Odd, optimizer=partial(torch.optim.SGD, lr=lr, weight_decay=0.1))


def short_windows(policy: str) -> dict[str, int]:
    """Options with which a policy brings replicas together often."""
    return accepted(policy, anchor=3, max_anchor=3, base=3)


def _trouble(kind: str, folder: Path, at: int, model: nn.Module, batch: Tensors) -> Tensor:
    calls = getattr(model, "calls", 0) + 1
    model.calls = calls  # type: ignore[assignment]
    mine = False
    if calls == at:
        with suppress(FileExistsError):
            (folder / "trouble").touch(exist_ok=False)
            mine = True
    if mine and kind == "raise":
        raise RuntimeError("the toy is broken \udc80" + "!" * 3_000_000)
    if mine and kind == "eof":
        raise EOFError("the file ends too early")
    if mine and kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mine and kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    factor = float("nan") if mine and kind == "nan" else 1.0
    return loss(model, batch) * factor


def troubled(kind: str, folder: Path, at: int = 3) -> Task:
    """A task whose step number `at` goes wrong in one rank, whichever comes to it first; the others are sound."""
    return replace(task(), loss=partial(_trouble, kind, folder, at))
