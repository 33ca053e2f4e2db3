"""What a transport is, and which one applies."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ddp.comm.transports import TRANSPORTS
from ddp.core.errors import EngineError

SUM, MAX, MEAN, MIN, PROD = "sum", "max", "mean", "min", "prod"

ShardRange = tuple[int, int, int]
"""(owner's place in the group, start, stop): elements of a flat tensor that one member owns."""
Wait = Callable[[], None]
"""Returns when it is done. Raises ExchangeBroken."""


class ExchangeBroken(EngineError):
    """A collective could not be completed, because another rank is gone or too late."""


def broken(error: Exception) -> ExchangeBroken:
    """Return `error` as ExchangeBroken, where that is what it is: PyTorch's engines have their collectives inside forward
    and backward passes, where gloo and NCCL raise their own. Raises any other error again."""
    if isinstance(error, ExchangeBroken):
        return error
    if isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error):
        return ExchangeBroken(str(error))
    raise error


@dataclass(frozen=True)
class TransportConfig:
    """Where a rank stands."""

    folder: Path
    """A folder that all ranks of this host share, in memory if possible."""
    rank: int
    world_size: int
    device: torch.device
    timeout_s: float
    """How long to wait for a rank that nobody can tell from a slow one."""
    limit_s: float = math.inf
    """How long a collective waits for a rank that lives. Without limit where a coordinator judges who is too slow."""
    meet: str = ""
    """`HOST:PORT/NAME`: the store at which ranks of several hosts meet; empty: all are on one host."""
    host_ranks: int = 0
    """Ranks on this host; 0: all."""
    life: int = 0
    """How often this rank was started again."""
    spare_core: bool | None = None
    """Whether a core is left beside those of the ranks, as all of them are told; None: nothing is to move meanwhile."""


def spare(config: TransportConfig) -> bool:
    """Return whether reductions move while all ranks compute: by a GPU, over a link between hosts, or on a core that no rank
    has."""
    if config.spare_core is None:
        return False
    return config.device.type == "cuda" or bool(config.meet) or config.spare_core


class Transport(Protocol):
    """A rank's side of the collectives. All ranks of a group call the same ones in the same order."""

    name: str
    config: TransportConfig

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate flat memory that this transport reduces without a copy; of the same name, size and type on all ranks."""
        ...

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group of these ranks, in place of the one that there is; `generation` counts up; `lives`: how often each
        was started again. What comes of a failure: the next collective breaks."""
        ...

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce a contiguous tensor over the group, in place; the same bits on all ranks. Raises ExchangeBroken."""
        ...

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum over the group, in place, in what each member owns; the rest of its `tensor` is undefined afterwards. Runs
        are the same on all ranks. Raises ExchangeBroken."""
        ...

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Begin to fill `out` with runs of their owners' `source`, one behind another; `source` is what `empty` gave under
        one name. Between a run's change and its gathering lies a `fence`, between its gathering and its next change another
        collective. All ranks gather the same in the same order."""
        ...

    def fence(self) -> None:
        """Wait until what any member wrote before can be gathered. Raises ExchangeBroken."""
        ...

    def leave(self) -> None:
        """Break up the group: who still waits in it is not to wait in vain."""
        ...

    def close(self) -> None:
        """Go, as training is over, without waking those who are still at work."""
        ...


class TransportType(Protocol):
    """The class of a transport that `choose` can make."""

    def applies(self, config: TransportConfig) -> bool:
        """Return whether it works there."""
        ...

    def __call__(self, config: TransportConfig) -> Transport: ...


def choose(name: str, config: TransportConfig) -> Transport:
    """Return the transport `name`, or with `auto` the first that applies. Raise ValueError if it does not."""
    for each in TRANSPORTS if name == "auto" else (name,):
        transport: TransportType = importlib.import_module(TRANSPORTS[each]).Transport
        if transport.applies(config):
            return transport(config)
    raise ValueError(f"cluster.transport={name} does not work here ({config.device}); use auto")
