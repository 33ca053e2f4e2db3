"""From a user's functions and data to a `Task`, here or in the ranks' processes.

Functions travel by cloudpickle: those of the script itself, lambdas and closures as their code. Tensors of a data set
travel in a file that all ranks map, so that they lie in memory once.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from ddp.data.augment import Augment
from ddp.data.dataset import Collate, collated
from ddp.data.epoch_order import Sampler
from ddp.data.source import TensorSource
from ddp.process.forkserver import ENVIRONMENT
from ddp.replica.handle import WorkerHandle
from ddp.replica.task import Source, Task
from ddp.trainer.mistakes import CheckedStep, make_model, summary

_CODE = "task.pickle"


@dataclass(frozen=True)
class Parts:
    """What a user gives. The names are those of `Trainer`'s arguments."""

    model_factory: Callable[[], nn.Module]
    optimizer_factory: Callable[[list[nn.Parameter]], Any]
    train_step: Callable[[nn.Module, Any], Tensor]
    dataset: Source
    eval_step: Callable[[nn.Module, Any], Any] | None
    eval_dataset: Source
    eval_batch_size: int
    schedule: Callable[[float], float] | None
    epoch_callback: Callable[[int, WorkerHandle], None] | None
    augment: Augment | None
    sampler: Sampler | None
    drop_last: bool
    collate_fn: Collate | None = None


class NoSamples:
    """The evaluation data of a run that evaluates nothing."""

    nbytes = 0

    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Raise AssertionError: nobody asks for one."""
        raise AssertionError("there is nothing to evaluate")

    def to(self, device: torch.device) -> NoSamples:
        """Return the same nothing."""
        return self


def make_task(parts: Parts) -> Task:
    """Return the task that `parts` describe."""
    return Task(
        model=partial(make_model, parts.model_factory),
        optimizer=parts.optimizer_factory,
        loss=CheckedStep(parts.train_step),
        evaluate=partial(_evaluate, parts.eval_step),
        train_data=lambda: collated(parts.dataset, parts.collate_fn),
        eval_data=lambda: collated(parts.eval_dataset, parts.collate_fn),
        schedule=parts.schedule or _constant,
        eval_batch=parts.eval_batch_size,
        means=True,
        epoch_callback=parts.epoch_callback,
        augment=parts.augment,
        sampler=parts.sampler,
        drop_last=parts.drop_last,
    )


def _constant(fraction: float) -> float:
    return 1.0


def _evaluate(step: Callable[[nn.Module, Any], Any] | None, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    assert step is not None
    means = step(model, batch)
    values = means if isinstance(means, tuple) and len(means) == 2 else (math.nan, means)
    loss, metric = map(_number, values)
    if loss is None or metric is None:
        raise ValueError(
            "eval_step must return the mean metric over the batch, one number, or (mean loss, mean metric), not "
            + summary(means)
        )
    return loss, metric


def _number(value: Any) -> Tensor | None:
    """Return a real number in double precision; None: it is none."""
    if isinstance(value, Tensor):
        return value.double().reshape(()) if value.numel() == 1 and not value.is_complex() else None
    try:
        return torch.tensor(float(value), dtype=torch.float64) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class _Stored:
    """Stands for a data set of tensors in the pickled parts."""

    name: str


@dataclass(frozen=True)
class PackedTask:
    """Parts, ready to go to ranks."""

    code: bytes
    tensors: dict[str, tuple[Tensor, ...]]

    @property
    def bytes(self) -> int:
        """What `deliver` will write."""
        return len(self.code) + sum(tensor.nbytes for group in self.tensors.values() for tensor in group)

    def deliver(self, folder: Path) -> Callable[[], Task]:
        """Write the packed to `folder`; what is returned makes the task of it in any process."""
        (folder / _CODE).write_bytes(self.code)
        for name, group in self.tensors.items():
            # A slice would bring along the whole of what it was cut from.
            own = [t if t.nbytes == t.untyped_storage().nbytes() else t.clone() for t in (t.detach() for t in group)]
            torch.save(own, folder / f"{name}.pt")
        return partial(open_parcel, folder)


@dataclass(frozen=True)
class _Surroundings:
    """What is set for all of this process, that a user's functions see and results depend on."""

    environment: dict[str, str]
    dtype: torch.dtype
    precision: str
    deterministic: tuple[bool, bool]

    @staticmethod
    def here() -> _Surroundings:
        """Return those of this process."""
        strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        return _Surroundings(
            {**ENVIRONMENT, **os.environ}, torch.get_default_dtype(), torch.get_float32_matmul_precision(), strict
        )

    def take(self) -> None:
        """Make them those of this process, a rank: the server that it was forked from may have begun long before."""
        for name in os.environ.keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        mode, warn_only = self.deterministic
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def pack(parts: Parts) -> PackedTask:
    """Pickle `parts`. ValueError that names the argument that cannot be sent to another process."""
    given = {name: getattr(parts, name) for name in ("dataset", "eval_dataset")}
    tensors = {name: source.tensors for name, source in given.items() if type(source) is TensorSource}
    stands: dict[str, Any] = {name: _Stored(name) for name in tensors}
    light = replace(parts, **stands)
    try:
        return PackedTask(pickle.dumps(_Surroundings.here()) + cloudpickle.dumps(light), tensors)
    except Exception as error:
        raise ValueError(_culprit(light, error)) from error


def _culprit(parts: Parts, error: Exception) -> str:
    for part in fields(parts):
        try:
            cloudpickle.dumps(getattr(parts, part.name))
        except Exception as reason:
            return (
                f"{part.name} cannot be sent to the ranks' processes ({type(reason).__name__}: {reason}); "
                "what it uses of locks, files or connections, it must make itself when it is called"
            )
    return f"the task cannot be sent to the ranks' processes ({type(error).__name__}: {error})"


def open_parcel(folder: Path) -> Task:
    """Return the task of a packed in `folder`."""
    with (folder / _CODE).open("rb") as code:
        surroundings: _Surroundings = pickle.load(code)
        surroundings.take()  # first: what the functions need may be imported now, and look at them
        parts: Parts = pickle.load(code)
    stored = {name: getattr(parts, name) for name in ("dataset", "eval_dataset")}
    loaded: dict[str, Any] = {
        name: TensorSource(*torch.load(folder / f"{name}.pt", map_location="cpu", mmap=True))
        for name, source in stored.items()
        if isinstance(source, _Stored)
    }
    return make_task(replace(parts, **loaded))
