"""Data for a graph: `ddp.DataLoader` says what and in which order, `GraphBatch` is what every replica gets of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp.data.loader import DataLoader
from ddp.graph.errors import GraphError
from ddp.graph.scatter import gather


def check(loader: DataLoader, inputs: Sequence[str]) -> tuple[str, ...]:
    """`inputs`, or the loader's first name if there are none. GraphError for one that no member of a batch has."""
    for name in inputs:
        if name not in loader.names:
            raise GraphError(f"no member {name!r} in a batch; the loader names {list(loader.names)}")
    return tuple(inputs) or loader.names[:1]


__all__ = ["DataLoader", "GraphBatch", "check"]


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
