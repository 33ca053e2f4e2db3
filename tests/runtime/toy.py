"""Small tasks for real processes. Functions are importable by name, so that ranks can call them."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ddp.data.source import TensorSource
from ddp.runtime.task import Task, Tensors

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


def data(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
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
    lr: float = 0.1, norm: bool = False, folder: Path | None = None, samples: int = SAMPLES, optimizer: str = "SGD"
) -> Task:
    """A classifier of 203 points in 6 dimensions."""
    return Task(
        model=partial(net, norm),
        optimizer=partial(getattr(torch.optim, optimizer), lr=lr),
        loss=loss,
        evaluate=evaluate,
        train_data=partial(source, folder, samples),
        eval_data=partial(TensorSource, *data(100)),
        schedule=flat_schedule,
    )


def _trouble(kind: str, at: int, model: nn.Module, batch: Tensors) -> Tensor:
    calls = getattr(model, "calls", 0) + 1
    model.calls = calls  # type: ignore[assignment]
    if calls == at:
        if kind == "raise":
            raise RuntimeError("the toy is broken")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "nan":
            return loss(model, batch) * float("nan")
    return loss(model, batch)


def troubled(kind: str, rank_at: int = 3) -> Task:
    """A task whose step number `rank_at` goes wrong, in whichever rank gets the odd process number first."""
    from dataclasses import replace

    return replace(task(), loss=partial(_trouble, kind, rank_at))
