"""Defines the protocol of a transport. `ddp.comm.transports.choice` decides which one a run takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ddp.core.errors import EngineError

SUM, MAX, MEAN, MIN, PROD = "sum", "max", "mean", "min", "prod"

ShardRange = tuple[int, int, int]
"""(index of the owner in the group, start, stop): elements of a flat tensor that one member owns."""
Wait = Callable[[], None]
"""Returns when the collective is done. Raises ExchangeBroken."""


class ExchangeBroken(EngineError):
    """A collective could not be completed, because another rank is gone or too late."""


def broken(error: Exception) -> ExchangeBroken:
    """Return `error` as ExchangeBroken if it is one. PyTorch's engines call collectives in forward and backward passes,
    where gloo and NCCL raise their own errors. Raises any other error again."""
    if isinstance(error, ExchangeBroken):
        return error
    if isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error):
        return ExchangeBroken(str(error))
    raise error


@dataclass(frozen=True)
class TransportConfig:
    """A rank's place among the ranks, and its settings."""

    folder: Path
    """Folder that all ranks of this host share, in memory if possible."""
    rank: int
    world_size: int
    device: torch.device
    timeout_s: float
    """Seconds to wait for a rank that may be lost or just slow."""
    limit_s: float = math.inf
    """Seconds that a collective waits for a living rank. Infinite if a coordinator decides which rank is too slow."""
    meet: str = ""
    """`HOST:PORT/NAME` of the store that connects ranks of several hosts; empty: all ranks are on one host."""
    host_ranks: int = 0
    """Number of ranks on this host; 0: all."""
    life: int = 0
    """How often this rank was restarted."""
    spare_core: bool | None = None
    """Whether the host has a core more than ranks, the same on all ranks; None: never reduce in the background."""


def spare(config: TransportConfig) -> bool:
    """Return whether reductions can run while all ranks compute: on a GPU, over a link between hosts, or on a spare
    core."""
    if config.spare_core is None:
        return False
    return config.device.type == "cuda" or bool(config.meet) or config.spare_core


class Transport(Protocol):
    """A rank's side of the collectives. All ranks of a group must call the same ones in the same order."""

    name: str
    config: TransportConfig

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate a flat tensor that is reduced without a copy. Name, size and type must be the same on all ranks."""
        ...

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form a group of these ranks, instead of the present one. `generation` increases; `lives`: how often each rank was
        restarted. If it fails, the next collective raises ExchangeBroken."""
        ...

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce a contiguous tensor over the group in place, to the same bits on all ranks. Raises ExchangeBroken."""
        ...

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum over the group, in place; each member gets the ranges that it owns, the rest of its `tensor` is undefined.
        `runs` must be the same on all ranks. Raises ExchangeBroken."""
        ...

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Start to fill `out` with ranges of the owners' `source`, one after the other; `source` is made by `empty`, under
        the same name on all ranks. Call `fence` between a change of a range and its gathering, and another collective
        between its gathering and the next change. All ranks gather the same ranges in the same order."""
        ...

    def fence(self) -> None:
        """Wait until earlier writes of all members can be gathered. Raises ExchangeBroken."""
        ...

    def leave(self) -> None:
        """Break up the group, and wake the ranks that wait in it."""
        ...

    def close(self) -> None:
        """Leave after training, without waking ranks that still work."""
        ...
