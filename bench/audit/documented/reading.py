"""Reads the training and test data of a run through the data set itself, in the documented order."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.audit.documented.draws import SampleDraws, read, read_rows, sampled
from bench.audit.documented.seeds import keys_of, order_of, seed_of, seed_others
from ddp.data.dataset import MapSource, Rows
from ddp.data.source import TensorSource
from ddp.replica.task import Task

CONTENTS = Path(__file__).with_name("contents.json")
"""Data set -> part -> sha256 of its content: `python -m bench.audit.documented.contents` writes it."""
SAMPLES = 4
"""Number of samples that are read twice."""
PADDING = 4
"""Most pixels by which a recipe with `augment` shifts images."""


def rows(source: Any, indices: NDArray[np.int64]) -> Any:
    """Return samples by index: indexed tensors if the data set consists of these, else a batch that it returns
    itself."""
    wanted = torch.from_numpy(indices)
    if type(source) is TensorSource:
        return tuple(tensor[wanted] for tensor in source.tensors)
    return source.batch(wanted)


def made_as_by_rank(make: Callable[[], Task], seed: int) -> tuple[Task, nn.Module]:
    """Return the task with its data, and its model. All may draw random numbers: they are made in the order of ranks, and
    the generators are seeded again behind the task, which may import modules that draw."""
    _seed_all(seed)
    task = make()
    _seed_all(seed)
    model = task.model()
    task.optimizer(list(model.parameters()))
    train, test = task.train_data(), task.eval_data()
    return replace(task, train_data=lambda: train, eval_data=lambda: test), model


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed_of(seed, "init"))
    seed_others(seed_of(seed, "init"))


def unknowable(task: Task, data: TrainingData) -> str:
    """Return why the steps of a run cannot be repeated, as something follows from no seed; empty: they can."""
    if task.epoch_callback is not None:
        return "what epoch_callback does is not known beyond its run"
    if task.sampler is not None and not np.array_equal(data.visits(0), data.visits(0)):
        return "the sampler gives another order each time"
    if not repeatable(data.source, partial(data.read, 0, 0)):
        return "the data set gives different samples at each reading"
    if not data.steady(0, 0, SAMPLES):
        return "augment gives different samples each time"
    return ""


def repeatable(source: Any, read: Callable[[NDArray[np.int64]], Any] | None = None) -> bool:
    """Return whether some samples are equal when read twice. `read`: function of indices; None: the data set's own."""
    if type(source) is TensorSource or not len(source):
        return True
    read, first = read or partial(rows, source), np.arange(min(len(source), SAMPLES))
    return _same(read(first), read(first))


def _same(first: Any, again: Any) -> bool:
    if isinstance(first, Tensor):
        return bool(torch.equal(torch.nan_to_num(first), torch.nan_to_num(again)))
    if isinstance(first, Mapping):
        return all(_same(value, again[key]) for key, value in first.items())
    if isinstance(first, (tuple, list)):
        return all(map(_same, first, again))
    return bool(np.all(first == again))


class TrainingData:
    """The training samples of a task by position in an epoch."""

    def __init__(
        self, task: Task, seed: int, augment: bool | None = None, length: int | None = None, whole: int = 1
    ) -> None:
        """`augment`: whether a recipe augments; None: the task's own function does. `length`: positions in an epoch;
        None: one order, cut to a multiple of `whole`."""
        self.source, self._seed, self._sampler = task.train_data(), seed, task.sampler
        recipe = partial(shifted, PADDING) if augment else None
        self.augment = recipe if augment is not None else _documented(task.augment)
        self._order = lru_cache(maxsize=2)(self.visits)
        self._given = len(self.source) if self._sampler is None else len(sampled(self._sampler, seed, 0))
        self._length = self._given // whole * whole if length is None else length

    def __len__(self) -> int:
        return self._length

    def sample(self) -> Tensor | None:
        """Return the model's input for the first sample, if it is a tensor; else None."""
        first = rows(self.source, np.arange(1)) if len(self.source) else None
        known = isinstance(first, (tuple, list)) and first and isinstance(first[0], Tensor)
        return first[0][0] if known else None  # type: ignore[index]

    def visits(self, epoch: int) -> NDArray[np.int64]:
        """Return the sample indices of an epoch in order: as many orders of all samples as it takes, the last one
        cut."""
        orders = max(-(-self._length // max(self._given, 1)), 1)
        return np.concatenate([self._one(epoch * orders + number) for number in range(orders)])[: self._length]

    def _one(self, number: int) -> NDArray[np.int64]:
        if self._sampler is not None:
            return sampled(self._sampler, self._seed, number)
        return order_of(self._seed, number, self._given)

    def _keys(self, epoch: int, start: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the keys of the random streams of samples from position `start` on: a new key each time that an epoch
        repeats a sample."""
        again = np.arange(start, start + len(indices)) // max(self._given, 1) * len(self.source)
        return keys_of(self._seed, epoch, indices + again)

    def read(self, epoch: int, start: int, indices: NDArray[np.int64]) -> Any:
        """Return what the data set gives for the samples from position `start` on."""
        if isinstance(self.source, MapSource):
            return read(self.source, indices, self._keys(epoch, start, indices))
        if isinstance(self.source, Rows):
            return read_rows(self.source, indices, self._keys(epoch, start, indices))
        return rows(self.source, indices)

    def batch(self, epoch: int, start: int, stop: int) -> Any:
        """Return the model's input at positions [start, stop) of an epoch."""
        indices = self._order(epoch)[start:stop]
        batch = self.read(epoch, start, indices)
        return batch if self.augment is None else self.augment(batch, SampleDraws(self._keys(epoch, start, indices)))

    def steady(self, epoch: int, start: int, stop: int) -> bool:
        """Return whether two readings give the model the same samples."""
        known = type(self.source) is TensorSource and self.augment is None
        return known or not self._length or _same(self.batch(epoch, start, stop), self.batch(epoch, start, stop))


def _documented(augment: Any) -> Any:
    """Return the augmentation; the engine's own function is replaced by the one in this module."""
    function, given = getattr(augment, "func", None), getattr(augment, "args", ())
    return partial(shifted, *given) if getattr(function, "__module__", "") == "ddp.data.augment" else augment


def shifted(padding: int, batch: Any, draws: SampleDraws) -> Any:
    """Shift images [n, c, h, w], the first member of a batch, by up to `padding` pixels, and mirror half of them."""
    images = (batch if isinstance(batch, Tensor) else batch[0]).numpy()
    count, _, height, width = images.shape
    down, right = draws.integers(0, 2 * padding + 1, 2).T.tolist()
    mirrored = draws.integers(0, 2).tolist()
    room = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.empty_like(images)
    for n in range(count):
        crop = room[n, :, down[n] : down[n] + height, right[n] : right[n] + width]
        seen[n] = crop[:, :, ::-1] if mirrored[n] else crop
    done = torch.from_numpy(seen)
    return done if isinstance(batch, Tensor) else (done, *batch[1:])


def content(source: Any) -> str:
    """Return the sha256 of all samples of a data set, tensor by tensor."""
    digest = hashlib.sha256()
    for tensor in rows(source, np.arange(len(source))):
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def committed(data: str) -> dict[str, str] | None:
    """Return part -> committed digest of a data set; None: there is none, or none for this version of Python."""
    table = json.loads(CONTENTS.read_text(encoding="utf-8")) if CONTENTS.exists() else {}
    digests: dict[str, str] | None = table.get(data, table.get(f"{data} of Python {platform.python_version()}"))
    return digests
