"""Reads the data that a run was trained and evaluated on: by the data set's own reading, in the order of the documents."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.audit.seeds import order_of, shifted
from ddp.data.source import TensorSource
from ddp.replica.task import Task

CONTENTS = Path(__file__).with_name("contents.json")
"""Data set -> part -> sha256 of its content: `python -m bench.audit.contents` writes it."""
SAMPLES = 4
"""Samples of a data set that are read twice."""
PADDING = 4
"""Pixels by which a recipe with `augment` moves images at most."""


def rows(source: Any, indices: NDArray[np.int64]) -> Any:
    """Return samples by index: of tensors where the data set is nothing but these, else a batch by its own reading."""
    wanted = torch.from_numpy(indices)
    if type(source) is TensorSource:
        return tuple(tensor[wanted] for tensor in source.tensors)
    return source.batch(wanted)


def unknowable(task: Task, source: Any, augment: bool, own: bool) -> str:
    """Return why what a step saw cannot be read again: code of a user's own draws it. Empty: it can. `augment`: whether the
    recipe augments; `own`: whether the set-up is a user's, who may do what no recipe says."""
    if task.sampler is not None:
        return "the samples of its steps are its own sampler's"
    function, given = getattr(task.augment, "func", None), getattr(task.augment, "args", ())
    documented = getattr(function, "__module__", "") == "ddp.data.augment" and given == (PADDING,)
    if task.augment is not None and not (documented and (augment or not own)):
        return "what its own augmentation does is not known beyond its run"
    return "" if repeatable(source) else "the data set gives other samples at each reading"


def repeatable(source: Any) -> bool:
    """Tell whether some samples are the same when they are read again."""
    if type(source) is TensorSource or not len(source):
        return True
    first = np.arange(min(len(source), SAMPLES))
    return _same(rows(source, first), rows(source, first))


def _same(first: Any, again: Any) -> bool:
    if isinstance(first, Tensor):
        return bool(torch.equal(torch.nan_to_num(first), torch.nan_to_num(again)))
    if isinstance(first, Mapping):
        return all(_same(value, again[key]) for key, value in first.items())
    if isinstance(first, (tuple, list)):
        return all(map(_same, first, again))
    return bool(np.all(first == again))


class TrainingData:
    """The training samples by their positions in an epoch."""

    def __init__(self, source: Any, seed: int, augment: bool, length: int | None = None, whole: int = 1) -> None:
        """`length`: positions of an epoch; None: as many as samples, cut at the end to a multiple of `whole`."""
        self.source, self._seed, self._augment = source, seed, augment
        self._length = len(source) // whole * whole if length is None else length
        self._order = lru_cache(maxsize=2)(self._visits)

    def __len__(self) -> int:
        return self._length

    def sample(self) -> Tensor | None:
        """Return what a model sees of the first sample, if that is a tensor."""
        first = rows(self.source, np.arange(1)) if len(self.source) else None
        known = isinstance(first, (tuple, list)) and first and isinstance(first[0], Tensor)
        return first[0][0] if known else None  # type: ignore[index]

    def _visits(self, epoch: int) -> NDArray[np.int64]:
        """Return the samples of an epoch in their order: as many orders of all of them as it takes, the last one cut."""
        orders = max(-(-self._length // max(len(self.source), 1)), 1)
        return np.concatenate(
            [order_of(self._seed, epoch * orders + number, len(self.source)) for number in range(orders)]
        )[: self._length]

    def __call__(self, epoch: int, start: int, stop: int) -> Any:
        """Return the samples at positions [start, stop) of an epoch, as the model is to see them."""
        indices = self._order(epoch)[start:stop]
        first, *others = rows(self.source, indices)
        if self._augment:
            # Another stream each time that an epoch has a sample.
            again = np.arange(start, stop) // len(self.source) * len(self.source)
            first = torch.from_numpy(shifted(first.numpy(), PADDING, self._seed, epoch, indices + again))
        return (first, *others)


def content(source: Any) -> str:
    """Return the sha256 of all samples of a data set, tensor by tensor."""
    digest = hashlib.sha256()
    for tensor in rows(source, np.arange(len(source))):
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def committed(data: str) -> dict[str, str] | None:
    """Return the committed digests of a data set by part; None: there are none of it for this version of Python."""
    table = json.loads(CONTENTS.read_text(encoding="utf-8")) if CONTENTS.exists() else {}
    digests: dict[str, str] | None = table.get(data, table.get(f"{data} of Python {platform.python_version()}"))
    return digests
