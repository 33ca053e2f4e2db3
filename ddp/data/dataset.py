"""What users bring as a data set, as a source: tensors, PyTorch's map-style data sets, or a source already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from ddp.data.source import TensorSource


class MapSource:
    """The samples of a map-style data set (`len`, `[index]`), put together by PyTorch's `default_collate`.

    `__getitems__` is used where there is one, as PyTorch's own loader does. Randomness in it (augmentation) comes from
    torch's global generator, which is seeded for every step.
    """

    def __init__(self, dataset: Any, device: torch.device | None = None) -> None:
        if len(dataset) == 0:
            raise ValueError("the data set is empty")
        self._dataset, self._device = dataset, device

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Tensor) -> Any:
        """The samples at `indices` (int64, shape [n]), in that order, collated, tensors on the device."""
        wanted = indices.tolist()
        several = getattr(self._dataset, "__getitems__", None)
        samples = several(wanted) if several else [self._dataset[index] for index in wanted]
        return _move(default_collate(samples), self._device)

    def to(self, device: torch.device) -> MapSource:
        """The same data, whose batches come to `device`."""
        return MapSource(self._dataset, device)


def as_source(dataset: Any) -> Any:
    """A source of `dataset`: a tensor or a tuple or list of them, a TensorDataset, a map-style data set, or a source.

    ValueError for anything else, and for a data set without samples.
    """
    if isinstance(dataset, Tensor):
        return TensorSource(dataset)
    if type(dataset) is TensorDataset:
        return TensorSource(*dataset.tensors)
    if isinstance(dataset, (tuple, list)):
        if not dataset or not all(isinstance(member, Tensor) for member in dataset):
            raise ValueError("a tuple or list as data set must hold tensors of equal length, such as (inputs, targets)")
        return TensorSource(*dataset)
    if isinstance(dataset, IterableDataset):
        raise ValueError("an IterableDataset has no order to be divided over ranks; give a map-style Dataset")
    if not hasattr(type(dataset), "__len__"):
        raise ValueError(
            f"{type(dataset).__name__} is no data set: give tensors, or a Dataset with a length and an index"
        )
    if all(callable(getattr(dataset, name, None)) for name in ("batch", "to")):
        if len(dataset) == 0:
            raise ValueError("the data set is empty")
        return dataset
    if not hasattr(type(dataset), "__getitem__"):
        raise ValueError(
            f"{type(dataset).__name__} is no data set: give tensors, or a Dataset with a length and an index"
        )
    return MapSource(dataset)


def _move(batch: Any, device: torch.device | None) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _move(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(_move(member, device) for member in batch)
    return batch
