"""Sources of samples. `TensorSource`: a data set in memory. Knows nothing of order, ranks or files."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Self

import torch
from torch import Tensor

from ddp.permutation import permutation


class TensorSource:
    """Samples held as tensors of equal first dimension, such as images [n, c, h, w] and labels [n]."""

    repeatable = True
    """Whether `batch` gives each sample independently of others, and the same each time. A subclass with its own `batch`
    must declare this again; only then are the trained samples compared with the data set."""

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError("a data set needs at least one tensor")
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise ValueError("the tensors of a data set must not be sparse; give tensor.to_dense()")
        lengths = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
        if len(set(lengths)) > 1:
            raise ValueError(f"the tensors of a data set must have equal lengths, got {lengths}")
        if lengths[0] == 0:
            raise ValueError("the data set is empty")
        self.tensors = tuple(tensor.detach() for tensor in tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    @property
    def nbytes(self) -> int:
        """Return the bytes that `to` needs on a device. Only sources with this attribute can be resident."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return a copy of the samples at `indices` (int64, shape [n]), in that order, on the device of the data.

        Raise IndexError (or torch's own error, on a device) for an index out of range."""
        indices = indices.to(self.tensors[0].device, non_blocking=True)
        return tuple(tensor.index_select(0, indices) for tensor in self.tensors)

    def first(self, samples: int, seed: int | None = None) -> Self:
        """Return a data set with a copy of `samples` samples: the first ones, or ones drawn by `seed`, in their original
        order."""
        count = len(self)
        chosen = torch.arange(count) if seed is None else torch.from_numpy(permutation(seed, 0, count))
        part = copy.copy(self)
        part.tensors = tuple(tensor.index_select(0, chosen[:samples].sort().values) for tensor in self.tensors)
        return part

    def to(self, device: torch.device) -> Self:
        """Return the same data on `device`, of the same class; data that is there already is shared."""
        moved = copy.copy(self)
        moved.tensors = tuple(tensor.to(device) for tensor in self.tensors)
        return moved


def texts(batch: Any) -> bool:
    """Return whether a batch is a list of strings, one for each sample, as `default_collate` returns; it is then one
    member, not several."""
    return isinstance(batch, (tuple, list)) and bool(batch) and all(isinstance(text, (str, bytes)) for text in batch)


def every(change: Callable[[Tensor], Tensor], batch: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """Return `batch` with `change` applied to every tensor: a tensor itself, or tensors in mappings, named tuples (both
    keep their types), tuples and lists (which become tuples). `other`: applied to other objects with a method `to`."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return _alike(batch, {key: every(change, value, other) for key, value in batch.items()})
    if other is not None and callable(getattr(batch, "to", None)):
        return other(batch)
    if isinstance(batch, (tuple, list)):
        members = [every(change, member, other) for member in batch]
        return type(batch)(*members) if hasattr(batch, "_fields") else tuple(members)
    return batch


def _alike(batch: Mapping[Any, Any], members: dict[Any, Any]) -> Mapping[Any, Any]:
    """Make a mapping of the type of `batch`; a dict if that is not possible, as in PyTorch's `default_collate`."""
    if type(batch) is dict:
        return members
    try:
        if isinstance(batch, MutableMapping):
            copied = copy.copy(batch)  # keeps attributes and a default factory
            copied.update(members)
            return copied
        return type(batch)(members)  # type: ignore[call-arg]
    except TypeError:
        return members


def move(batch: Any, device: torch.device | None) -> Any:
    """Return `batch` with its tensors, and other objects that have a method `to`, on `device`; None: unchanged."""

    def there(part: Any) -> Any:
        return part.to(device)

    return batch if device is None else every(there, batch, there)
