"""Data for a graph: `ddp.DataLoader` gives the samples and their order, `GraphBatch` is a batch divided over the replicas.

Owns the parts of a batch. Must not know how they are cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp.data.loader import DataLoader
from ddp.graph.scatter import gather

__all__ = ["DataLoader", "GraphBatch"]


@dataclass(frozen=True)
class GraphBatch:
    """A batch divided over the replicas. `batch[name]` gathers one member in the order of the graph's output; `len(batch)`
    is the number of its samples."""

    names: tuple[str, ...]
    parts: tuple[tuple[Any, ...], ...]
    """The batches of each rank, on its device, as the source returns them."""
    sizes: tuple[tuple[int, ...], ...]
    """Number of samples of each of `parts`."""
    device: torch.device
    """Device of a gathered member."""

    def __len__(self) -> int:
        return sum(map(sum, self.sizes))

    def __getitem__(self, name: str) -> Tensor:
        members = [self.columns(part, (name,))[0] for parts in self.parts for part in parts]
        return gather(members, [size for sizes in self.sizes for size in sizes], self.device)

    def columns(self, part: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """Return the members `names` of one part. Raises KeyError for an unknown name."""
        if isinstance(part, Mapping):
            return tuple(part[name] for name in names)
        places = {name: index for index, name in enumerate(self.names)}
        for name in names:
            if name not in places:
                raise KeyError(f"{name!r} is not one of {list(self.names)}")
        return tuple(part[places[name]] for name in names)
