"""`gloo`: PyTorch's process group over sockets: on loopback, or between hosts. Of ranks on CPUs, or of several on one GPU,
which NCCL refuses: tensors are then copied through the host's memory.

The end of a process wakes all ranks that wait for it, and the coordinator ends a rank that hangs, so a collective on one
host has no time limit. Between hosts it has the transport's limit: behind a broken link the end of a process is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore  # what torch.distributed exports

from ddp.comm.transports.base import MAX, MEAN, MIN, PROD, SUM, ExchangeBroken, ShardRange, TransportConfig, Wait

DAY = timedelta(days=1)
BUCKET_BYTES = 25 << 20
"""Maximum bytes in one collective: the default bucket size of torch's DistributedDataParallel."""
OPS = {
    SUM: dist.ReduceOp.SUM,
    MAX: dist.ReduceOp.MAX,
    MEAN: dist.ReduceOp.SUM,
    MIN: dist.ReduceOp.MIN,
    PROD: dist.ReduceOp.PRODUCT,
}
UNKNOWN = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
"""Integer types that neither gloo nor NCCL supports."""
LEAST = torch.iinfo(torch.int64).min


def limit_collectives(limit: timedelta) -> None:
    """Set the timeout of the default group's collectives from now on."""
    newer = getattr(dist, "set_timeout", None)  # the older name is for torch before 2.12 or so
    (newer or dist.distributed_c10d._set_pg_timeout)(limit, dist.group.WORLD)


class Transport:
    """A process group of all members."""

    name = "gloo"

    def __init__(self, config: TransportConfig) -> None:
        self.config = config

    @staticmethod
    def applies(config: TransportConfig) -> bool:
        """Return whether PyTorch was built with gloo."""
        return dist.is_available() and dist.is_gloo_available()

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate ordinary memory."""
        return torch.empty(elements, dtype=dtype, device=self.config.device)

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group through a file, or through the store of several hosts."""
        self.leave()
        limit = timedelta(seconds=self.config.timeout_s)
        with suppress(RuntimeError):  # a member is gone or too late: the next collective raises ExchangeBroken
            dist.init_process_group(
                self.name,
                store=self._meeting(len(members), generation, limit),
                rank=list(members).index(self.config.rank),
                world_size=len(members),
                timeout=limit,
            )
            self._formed()

    def _meeting(self, size: int, generation: int, limit: timedelta) -> Store:
        if not self.config.meet:
            return FileStore(f"{self.config.folder.resolve()}/rendezvous-{generation}", size)
        where, _, name = self.config.meet.partition("/")
        host, _, port = where.rpartition(":")
        store = TCPStore(host.strip("[]"), int(port), is_master=False, timeout=limit, wait_for_workers=False)
        return PrefixStore(f"{name}/{generation}", store)

    def _formed(self) -> None:
        if not self.config.meet:
            limit_collectives(DAY)

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce in buckets. The maximum or minimum of an unsupported integer type is computed in int64."""
        if op in (MAX, MIN) and tensor.dtype in UNKNOWN:
            wide = _widened(tensor)
            self.all_reduce(wide, op)
            tensor.copy_(_narrowed(wide, tensor.dtype))
            return
        with _breaking():
            for bucket in torch.split(tensor, BUCKET_BYTES // tensor.element_size()):
                dist.all_reduce(bucket, op=OPS[op])
        if op == MEAN:
            tensor.div_(dist.get_world_size())

    def start(self, tensor: Tensor, op: str = SUM) -> Wait:
        """Start to reduce, in order with and on the stream of the caller, because a model may have its own collectives
        there."""
        with _breaking():
            buckets = torch.split(tensor, BUCKET_BYTES // tensor.element_size())
            works = [dist.all_reduce(bucket, op=OPS[op], async_op=True) for bucket in buckets]

        def wait() -> None:
            with _breaking():
                for work in works:
                    work.wait()
            if op == MEAN:
                tensor.div_(dist.get_world_size())

        return wait

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Reduce range by range, in buckets."""
        with _breaking():
            for owner, start, stop in runs:
                for bucket in torch.split(tensor[start:stop], BUCKET_BYTES // tensor.element_size()):
                    dist.reduce(bucket, dst=owner)

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Broadcast each range from its owner."""
        works: list[Any] = []
        at = 0
        with _breaking():
            for owner, start, stop in runs:
                part, own = out[at : at + stop - start], source[start:stop]
                if owner == dist.get_rank() and part.data_ptr() != own.data_ptr():
                    part.copy_(own)
                works.append(dist.broadcast(part, src=owner, async_op=True))
                at += stop - start

        def wait() -> None:
            with _breaking():
                for work in works:
                    work.wait()

        return wait

    def fence(self) -> None:
        """Do nothing: a broadcast waits for the owner."""

    def leave(self) -> None:
        """Close the sockets, which wakes the other ranks."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def close(self) -> None:
        self.leave()


@contextmanager
def _breaking() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:  # a peer is gone or too late; or there is no group
        raise ExchangeBroken(str(error)) from error


def _widened(values: Tensor) -> Tensor:
    """Convert to int64, keeping the order."""
    return values.view(torch.int64) ^ LEAST if values.dtype is torch.uint64 else values.to(torch.int64)


def _narrowed(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo `_widened`."""
    return (wide ^ LEAST).view(dtype) if dtype is torch.uint64 else wide.to(dtype)
