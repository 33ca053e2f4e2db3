"""Builds a `Task` from a user's functions and data, in this process or in the ranks' processes.

Functions are sent by cloudpickle; lambdas, closures and functions of the script itself are sent as code. The tensors of
a data set are written to one file that all ranks map, so they are in memory once.
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
    """The functions and data that a user gives. The names are those of `Trainer`'s arguments."""

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
    """Empty evaluation data, for a run that evaluates nothing."""

    nbytes = 0

    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Raise AssertionError: there are no samples."""
        raise AssertionError("there is nothing to evaluate")

    def to(self, device: torch.device) -> NoSamples:
        """Return itself: there is nothing to move."""
        return self


def make_task(parts: Parts) -> Task:
    """Return the task that `parts` describes."""
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
    """Return a real number as a float64 tensor; None if `value` is not a number."""
    if isinstance(value, Tensor):
        return value.double().reshape(()) if value.numel() == 1 and not value.is_complex() else None
    try:
        return torch.tensor(float(value), dtype=torch.float64) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class _Stored:
    """Placeholder in the pickled parts for a data set whose tensors are in a file of their own."""

    name: str


@dataclass(frozen=True)
class PackedTask:
    """The parts of a task, ready to be sent to ranks."""

    code: bytes
    tensors: dict[str, tuple[Tensor, ...]]

    @property
    def bytes(self) -> int:
        """Bytes that `deliver` will write."""
        return len(self.code) + sum(tensor.nbytes for group in self.tensors.values() for tensor in group)

    def deliver(self, folder: Path) -> Callable[[], Task]:
        """Write the task to `folder`. Return a function that makes the task from these files in any process."""
        (folder / _CODE).write_bytes(self.code)
        for name, group in self.tensors.items():
            # Saving a slice would save the whole storage that it is a view of.
            own = [t if t.nbytes == t.untyped_storage().nbytes() else t.clone() for t in (t.detach() for t in group)]
            torch.save(own, folder / f"{name}.pt")
        return partial(open_parcel, folder)


@dataclass(frozen=True)
class _Surroundings:
    """Process-wide settings that a user's functions can see and that results depend on."""

    environment: dict[str, str]
    dtype: torch.dtype
    precision: str
    deterministic: tuple[bool, bool]

    @staticmethod
    def here() -> _Surroundings:
        """Return the settings of this process."""
        strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        return _Surroundings(dict(os.environ), torch.get_default_dtype(), torch.get_float32_matmul_precision(), strict)

    def take(self) -> None:
        """Apply the settings to this process, a rank: the fork server that it comes from may have started long
        before they were made. Variables that the fork server alone has set remain, such as gloo's interface."""
        for name in os.environ.keys() - self.environment.keys() - ENVIRONMENT.keys():
            del os.environ[name]
        os.environ.update(self.environment)
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        mode, warn_only = self.deterministic
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def pack(parts: Parts) -> PackedTask:
    """Pickle `parts`. Raise ValueError that names the argument that cannot be sent to another process."""
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
    """Return the task that was written to `folder`."""
    with (folder / _CODE).open("rb") as code:
        surroundings: _Surroundings = pickle.load(code)
        surroundings.take()  # first: unpickling imports the user's modules, which may read these settings
        parts: Parts = pickle.load(code)
    stored = {name: getattr(parts, name) for name in ("dataset", "eval_dataset")}
    loaded: dict[str, Any] = {
        name: TensorSource(*torch.load(folder / f"{name}.pt", map_location="cpu", mmap=True))
        for name, source in stored.items()
        if isinstance(source, _Stored)
    }
    return make_task(replace(parts, **loaded))
