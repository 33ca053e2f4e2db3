"""Data for a graph: `DataLoader` says what and in which order, `GraphBatch` is what every replica gets of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp.data.dataset import as_source
from ddp.data.order import order
from ddp.graph.errors import GraphError
from ddp.graph.scatter import gather


class DataLoader:
    """The training data of a graph.

    Args:
        dataset: as for `ddp.Trainer`: tensors of equal length, a TensorDataset, a map-style Dataset, or a source.
        batch_size: samples of one batch of one device.
        names: of the members of a batch, in order; for samples that are dictionaries, their keys.
        seed: of the order.
        shuffle: another order in each epoch; else that of the data.
        drop_last: leave out samples that make no whole batch of one device; by default every sample is trained.

    Tensors lie on each replica's device as a whole; a Dataset is read batch by batch.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        names: Sequence[str] = ("input", "target"),
        seed: int = 42,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be 1 or more")
        if len(set(names)) != len(names):
            raise ValueError(f"names={list(names)} must all be different")
        self._source, self.batch_size, self.names = as_source(dataset), batch_size, tuple(names)
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self._placed: dict[torch.device, Any] = {}
        if drop_last and len(self._source) < batch_size:
            raise ValueError(
                f"{len(self._source)} samples make no batch of {batch_size}: nothing is left with drop_last"
            )

    def __len__(self) -> int:
        """Samples of an epoch."""
        size = len(self._source)
        return size - size % self.batch_size if self._drop_last else size

    def order(self, epoch: int) -> Tensor:
        """Indices of the samples of an epoch, in their order, int64."""
        size = len(self._source)
        return (order(self._seed, epoch, size) if self._shuffle else torch.arange(size))[: len(self)]

    def on(self, device: torch.device) -> Any:
        """The data, for batches on `device`."""
        if device not in self._placed:
            self._placed[device] = self._source.to(device)
        return self._placed[device]

    def check(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """`inputs`, or the first name if there are none. GraphError for one that no member of a batch has."""
        for name in inputs:
            if name not in self.names:
                raise GraphError(f"no member {name!r} in a batch; the loader names {list(self.names)}")
        return tuple(inputs) or self.names[:1]


@dataclass(frozen=True)
class GraphBatch:
    """The parts of a batch on all replicas. `batch[name]` is a member as a whole, in the order in which the graph's value
    comes; `len(batch)` its samples."""

    names: tuple[str, ...]
    parts: tuple[tuple[Any, ...], ...]
    """The batches of each rank, on its device; each what the source gives."""
    sizes: tuple[tuple[int, ...], ...]
    """Their samples."""
    device: torch.device
    """Where a member as a whole lies."""

    def __len__(self) -> int:
        return sum(map(sum, self.sizes))

    def __getitem__(self, name: str) -> Tensor:
        members = [self.columns(part, (name,))[0] for mine in self.parts for part in mine]
        return gather(members, [size for mine in self.sizes for size in mine], self.device)

    def columns(self, part: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """The members `names` of one part. KeyError for an unknown one."""
        if isinstance(part, Mapping):
            return tuple(part[name] for name in names)
        places = {name: index for index, name in enumerate(self.names)}
        for name in names:
            if name not in places:
                raise KeyError(f"{name!r} is not one of {list(self.names)}")
        return tuple(part[places[name]] for name in names)
