"""Gives each rank of a process that has several a Task of its own, as ranks in processes have: a loss, a data set or a
callback may change in training.

Copies are made by cloudpickle, as Tasks are sent to processes. Large tensors of data sets are in memory once.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import cloudpickle
import numpy as np
from torch import Tensor

from ddp.data.dataset import MapSource, Rows
from ddp.data.source import TensorSource
from ddp.engine.cooperative_thread import generators
from ddp.replica.task import Job, Task

LARGE = 1 << 16
"""Bytes from which on the tensors and arrays of a data set are shared."""
ROOM = 1 << 30
"""Bytes of all ranks' copies from which on data sets are shared as a whole."""
_SHARED = (type, type(cache(len)))
"""What is shared: classes, and functions that remember what they returned."""
_ARRAYS = (Tensor, np.ndarray)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles an object, except for what `apart` takes: that is replaced by what `apart` returns."""

    def __init__(self, file: Any, apart: Callable[[Any], Any]) -> None:
        super().__init__(file, protocol=5)
        self._apart = apart

    def persistent_id(self, obj: Any) -> Any:
        return self._apart(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, copied: bytes, kept: list[Any]) -> None:
        super().__init__(io.BytesIO(copied))
        self._kept = kept

    def persistent_load(self, pid: int) -> Any:
        return self._kept[pid]


class _Bounded:
    """A file that keeps nothing, for up to `room` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room

    def write(self, content: Any) -> int:
        self._room -= len(content)
        if self._room < 0:
            raise OverflowError("too large for copies")
        return len(content)


class _Kept(_Bounded):
    """A file that keeps what is written, for up to `room` bytes."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.content = io.BytesIO()

    def write(self, content: Any) -> int:
        super().write(content)
        return self.content.write(content)


def _is_data(obj: Any) -> bool:
    return isinstance(obj, (TensorSource, MapSource, Rows)) or (
        hasattr(type(obj), "batch") and hasattr(type(obj), "to") and hasattr(type(obj), "__len__")
    )


def _large_of(whole: Any) -> dict[int, Any]:
    """Return the large tensors and arrays in the data sets inside an object, by their ids."""
    large = dict[int, Any]()

    def in_data(obj: Any) -> Any:
        if not isinstance(obj, _ARRAYS):
            return 0 if isinstance(obj, _SHARED) else None
        size = obj.untyped_storage().nbytes() if isinstance(obj, Tensor) else obj.nbytes
        if size >= LARGE:
            large[id(obj)] = obj
        return 0

    def outside(obj: Any) -> Any:
        if _is_data(obj):
            _Pickler(_Bounded(ROOM), in_data).dump(obj)
            return 0
        return 0 if isinstance(obj, (*_SHARED, *_ARRAYS)) else None

    _Pickler(_Bounded(sys.maxsize), outside).dump(whole)
    return large


def copier(whole: Any, copies: int) -> Callable[[], Any]:
    """Return a function that returns a copy of an object as it is now. Of what cannot be pickled, or of data too large for
    so many copies, all copies have the same."""

    def packed(data: bool) -> tuple[bytes, list[Any]]:
        """Pickle it; `data`: with its data sets."""
        large, kept, places = _large_of(whole) if data else {}, list[Any](), dict[int, int]()

        def apart(obj: Any) -> int | None:
            if not (isinstance(obj, _SHARED) or id(obj) in large or (not data and _is_data(obj))):
                return None
            if id(obj) not in places:
                places[id(obj)] = len(kept)
                kept.append(obj)
            return places[id(obj)]

        file = _Kept(ROOM // copies if data else sys.maxsize)
        _Pickler(file, apart).dump(whole)
        return file.content.getvalue(), kept

    for data in (True, False):
        with suppress(Exception):  # whatever a user's object raises
            copied, kept = packed(data)
            _Unpickler(copied, kept).load()
            return lambda: _Unpickler(copied, kept).load()
    return lambda: whole


class OwnTasks:
    """`tasks()` returns another rank's Task of `job`. Ranks must call it with equal states of the random generators.

    `shown`: the first rank has the user's own objects, so that what it does to them is seen outside."""

    def __init__(self, job: Job, shown: bool = False) -> None:
        self._job, self._shown = job, shown
        self._made: dict[str, tuple[Any, Callable[[], Any], Callable[[], None]]] = {}
        """Of the Task and of each data set: the object, what copies it, and what advances the random generators."""

    def __call__(self) -> Task:
        """Return a Task of its own for the next rank."""
        if "task" not in self._made:
            self._note("task", self._job.task())
        made, copy, advance = self._made["task"]
        advance()
        task: Task = made if self._shown else copy()
        self._shown = False
        train = partial(self._data, "train_data", task.train_data)
        return replace(task, train_data=train, eval_data=partial(self._data, "eval_data", task.eval_data))

    def _note(self, name: str, made: Any) -> None:
        self._made[name] = made, copier(made, self._job.world_size), generators()

    def _data(self, name: str, load: Callable[[], Any]) -> Any:
        """Return the rank's data set. If all ranks load the same object, all but the first get a copy."""
        made = load()
        if name not in self._made:
            self._note(name, made)
            return made
        first, copy, advance = self._made[name]
        if made is not first:
            return made
        advance()
        return copy()
