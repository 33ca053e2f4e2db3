"""`nccl`: replicas are averaged by a collective, in place. NCCL where every rank has its own GPU, else gloo.

Averages are taken in double precision over the wire: a product of a 24-bit significand and a sample count is exact there, so
the average of identical replicas is those replicas, bit for bit, whatever the weights (of types up to float32).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.core.commands import Average, Join, Reduce
from ddp.core.events import Reduced
from ddp.core.spans import Batch
from ddp.runtime.backends.base import Change, ExchangeBroken, Facts
from ddp.runtime.clock import now
from ddp.runtime.flat import FlatGradients, divergence
from ddp.runtime.task import Job

if TYPE_CHECKING:
    from ddp.runtime.loop import Loop
    from ddp.runtime.replica import Replica

FACTS = Facts(blocking=True, in_step=True)
BUCKET_BYTES = 25 << 20
"""A collective moves at most so much at once: the field's default."""


class Backend:
    """A rank's side: one process group over all ranks."""

    facts = FACTS

    def __init__(self, job: Job, rank: int, loop: Loop) -> None:
        own_gpu = loop.device.type == "cuda" and torch.cuda.device_count() >= job.world_size
        self.transport = "nccl" if own_gpu else "gloo"
        self._job, self._rank, self._loop, self._seq = job, rank, loop, 0
        # Ranks that wait in a collective must speak before they are taken for the one that is silent.
        self._timeout = timedelta(seconds=job.deadline_s / 2)
        self._gradients: FlatGradients | None = None
        if own_gpu:  # a collective that is too late raises, instead of ending the process
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        self._floats = loop.replica.state.floats
        self._counters = loop.replica.state.counters
        self._wire: list[Tensor] = []

    def join(self, order: Join) -> None:
        """Leave the group that there is, and meet the members of the new one."""
        began = now()
        self._leave()
        self._members = order.members
        with suppress(RuntimeError):  # a member is gone or too late: without a group, the next collective breaks
            dist.init_process_group(
                self.transport,
                init_method=f"file://{self._job.scratch.resolve()}/rendezvous-{order.generation}",
                rank=order.members.index(self._rank),
                world_size=len(order.members),
                timeout=self._timeout,
            )
        self._loop.meter.add("join", began)

    def _leave(self) -> None:
        """Break up the group; who still waits in it is not to wait in vain."""
        if dist.is_initialized():
            if self.transport == "nccl":
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()

    def share(self, round: int) -> None:
        """Write the average to a file; where gradients are exchanged inside steps, the replica's whole state."""
        held = self._loop.replica.capture() if self._gradients else {"tensors": self._mean()}
        torch.save(held, self._shared(round))

    def adopt(self, round: int) -> Change:
        """Read what was shared."""
        began, replica = now(), self._loop.replica
        held = torch.load(self._shared(round), map_location=self._loop.device)
        change: float | None = 0.0
        if self._gradients:
            replica.restore(held)
        else:
            own, mean = replica.state.tensors, held["tensors"]
            change = divergence(own, mean, replica.state.trained)
            for flat, other in zip(own, mean, strict=True):
                flat.copy_(other)
        size = replica.state.bytes
        return Change(self._loop.meter.add("copy", began, size=size) - began, size, change)

    def _mean(self) -> list[Tensor]:
        """The average of the last round, all types."""
        means = [wire[:-1].to(flat.dtype) for wire, flat in zip(self._wire, self._floats, strict=True)]
        return [*means, *self._counted]

    def _shared(self, round: int) -> Path:
        return self._job.scratch / f"shared-{round}.pt"

    def prepare_exchange(self, replica: Replica) -> None:
        """Gradients will be exchanged inside steps."""
        assert replica.gradients is not None
        self._gradients = replica.gradients

    def exchange(self, batch: Batch) -> None:
        """Average gradients and buffers, weighted by samples."""
        gradients, meter = self._gradients, self._loop.meter
        assert gradients is not None
        began = now()
        gradients.pack(batch.samples / batch.total)
        meter.add("copy", began)
        self._all_reduce(gradients.flats)
        began = now()
        gradients.unpack()
        meter.add("copy", began)
        if batch.total < len(self._members):
            # A rank without a sample did not count this batch in its buffers.
            self._all_reduce(self._counters, dist.ReduceOp.MAX)

    def average(self, order: Average, samples: int) -> Change:
        """Average the replicas, weighted by `samples`."""
        began, state, meter = now(), self._loop.replica.state, self._loop.meter
        state.gather()
        if not self._wire:
            self._wire = [
                torch.empty(flat.numel() + 1, dtype=torch.float64, device=flat.device) for flat in self._floats
            ]
        for flat, wire in zip(self._floats, self._wire, strict=True):
            if samples:
                wire[:-1].copy_(flat).mul_(samples)
            else:
                wire.zero_()  # an idle rank weighs nothing, whatever it holds
            wire[-1] = samples
        meter.add("copy", began)
        seconds, size = self._all_reduce(self._wire)
        self._counted = [
            counter.clone() for counter in self._counters
        ]  # a round that breaks leaves the replica as it was
        more, counters = self._all_reduce(self._counted, dist.ReduceOp.MAX)
        began = now()
        means = [wire[:-1].div_(wire[-1]) for wire in self._wire]
        change = divergence(self._floats, means, state.trained)
        for flat, mean in zip(self._floats, means, strict=True):
            flat.copy_(mean)
        for counter, highest in zip(self._counters, self._counted, strict=True):
            counter.copy_(highest)
        meter.add("copy", began)
        return Change(seconds + more, size + counters, change)

    def _all_reduce(self, tensors: list[Tensor], op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> tuple[float, int]:
        """Reduce tensors in place, in buckets; returns seconds and bytes."""
        began, size = now(), 0
        try:
            for tensor in tensors:
                for bucket in torch.split(tensor, BUCKET_BYTES // tensor.element_size()):
                    dist.all_reduce(bucket, op=op)
                    size += bucket.numel() * bucket.element_size()
        except (RuntimeError, ValueError) as error:  # a peer is gone or too late; or there is no group
            self._leave()
            raise ExchangeBroken(str(error)) from error
        if not size:
            return 0.0, 0
        self._seq += 1
        return self._loop.meter.add("exchange", began, self._seq, size) - began, size

    def snapshot(self) -> None:
        """Never asked for: this backend blocks."""
        raise AssertionError("a blocking backend lays down no snapshots")

    def apply(self, exact: bool) -> Change:
        """Never asked for: this backend blocks."""
        raise AssertionError("a blocking backend applies its average at once")

    def consensus(self, exact: bool) -> AbstractContextManager[None]:
        """An evaluation follows its average directly, so the replica is the average."""
        return nullcontext()

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Reducer:
    """Nothing to do beside the coordinator: ranks average among themselves."""

    def __init__(self, job: Job, done: Callable[[Reduced | Exception], None]) -> None: ...

    def __enter__(self) -> Reducer:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def submit(self, order: Reduce) -> None:
        """Never asked for."""
        raise AssertionError("a collective needs no reducer")
