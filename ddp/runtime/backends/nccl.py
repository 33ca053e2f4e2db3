"""`nccl`: replicas are averaged by a collective, in place. NCCL where every rank has its own GPU, else gloo.

By default averages are taken in double precision over the wire: weight times value is exact there or off by far less than a
float32 can tell, so the average of identical replicas is those replicas, bit for bit, whatever the weights (of types up to
float32). A narrower wire carries the differences to the last average, which all ranks hold with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ddp.core.commands import Average, Reduce
from ddp.core.events import Reduced
from ddp.core.spans import Batch
from ddp.runtime.backends.base import Change, ExchangeBroken, Facts
from ddp.runtime.clock import now
from ddp.runtime.flat import swapped
from ddp.runtime.inner import InnerOptimizer
from ddp.runtime.mean import PIECE, pieces, ratio, square
from ddp.runtime.outer import outer
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
        self._job, self._loop, self._seq = job, loop, 0
        # Ranks that wait in a collective must speak before they are taken for the one that is silent.
        self._timeout = timedelta(seconds=job.deadline_s / 2)
        dist.init_process_group(
            self.transport,
            init_method=f"file://{job.scratch.resolve()}/rendezvous",
            rank=rank,
            world_size=job.world_size,
            timeout=self._timeout,
        )
        self._prepare_average()

    def _prepare_average(self) -> None:
        settings, replica = self._job.averaging, self._loop.replica
        self._inner = InnerOptimizer(replica.optimizer, settings)
        self._sections = [s for s in replica.state.sections if s.values.is_floating_point()] + self._inner.sections
        self._counters = [flat for flat in replica.state.tensors if not flat.is_floating_point()]
        self._outer = [outer(settings, s.values) if s.kind == "parameters" else None for s in self._sections]
        self._exact = settings.wire == "float64"
        # The last average is the initial state at first, the same bits on all ranks.
        kept = not self._exact or settings.apart or settings.outer != "none"
        self._last = [section.values.clone() if kept else None for section in self._sections]
        self._wire: list[Tensor] = []
        self._weight = torch.zeros(1, dtype=torch.float64, device=self._loop.device)
        self._averaged = False

    def prepare_exchange(self, replica: Replica) -> None:
        """Gradients will be exchanged inside steps."""
        assert replica.gradients is not None
        self._gradients = replica.gradients

    def exchange(self, batch: Batch) -> None:
        """Average gradients and buffers, weighted by samples."""
        gradients, meter = self._gradients, self._loop.meter
        began = now()
        gradients.pack(batch.samples / batch.total)
        meter.add("copy", began)
        self._all_reduce(gradients.flats)
        began = now()
        gradients.unpack()
        meter.add("copy", began)
        if batch.total < self._job.world_size:
            # A rank without a sample did not count this batch in its buffers.
            self._all_reduce(self._counters, dist.ReduceOp.MAX)

    def average(self, order: Average, samples: int) -> Change:
        """Average the replicas, weighted by `samples`."""
        began, replica, meter = now(), self._loop.replica, self._loop.meter
        replica.state.gather()
        self._inner.gather()
        if not self._wire:
            self._make_wire()
        weight = self._job.averaging.weight(samples)
        self._weight.fill_(weight)
        seconds, size = 0.0, 0
        if not self._exact:  # shares need the total first
            meter.add("copy", began)
            seconds, size = self._all_reduce([self._weight])
            began = now()
            weight /= float(self._weight) or 1.0
        else:
            self._total.fill_(weight)
        for section, wire, last in zip(self._sections, self._wire, self._last, strict=True):
            for piece in self._pieces(wire):
                _lay(wire[piece], section.values[piece], weight, None if self._exact or last is None else last[piece])
        meter.add("copy", began)
        # The total travels behind the values: a collective of its own would cost as much for a small model.
        for tensors, op in ((self._buffer, dist.ReduceOp.SUM), (self._counters, dist.ReduceOp.MAX)):
            more, sent = self._all_reduce(tensors, op)
            seconds, size = seconds + more, size + sent
        began = now()
        divergence = self._take() if float(self._total) else 0.0  # else nobody trained since the last average
        self._inner.scatter()
        self._averaged = True
        meter.add("copy", began)
        return Change(seconds, size, divergence)

    def _make_wire(self) -> None:
        """One tensor for all sections, and behind them the weight where it is exact there."""
        dtype = getattr(torch, self._job.averaging.wire)
        sizes = [section.values.numel() for section in self._sections]
        whole = torch.empty(sum(sizes) + int(self._exact), dtype=dtype, device=self._loop.device)
        *self._wire, rest = torch.split(whole, [*sizes, int(self._exact)])
        self._buffer = [whole]
        self._total = rest if self._exact else self._weight

    def _pieces(self, wire: Tensor) -> Iterator[slice]:
        """What is worked on at a time: on the CPU what its cache holds."""
        return pieces(wire.numel(), PIECE if wire.device.type == "cpu" else max(wire.numel(), 1))

    def _take(self) -> float | None:
        """Take over the average that the wire holds; returns the divergence."""
        elastic = self._job.averaging.elastic
        total = float(self._total) if self._exact else 1.0
        norm = change = 0.0
        for section, wire, last, step in zip(self._sections, self._wire, self._last, self._outer, strict=True):
            trained = section.kind == "parameters"
            for piece in self._pieces(wire):
                own, then = section.values[piece], None if last is None else last[piece]
                mean = (wire[piece].div_(total) if self._exact else wire[piece]).to(own.dtype)
                if then is not None and not self._exact:
                    mean.add_(then)
                if step is not None and then is not None:
                    step.step(mean, then, piece)
                if then is not None:
                    then.copy_(mean)
                if not trained:
                    own.copy_(mean)
                    continue
                norm += square(mean)
                excess = own - mean
                change += square(excess)
                if self._job.averaging.apart:
                    own.sub_(excess, alpha=elastic)
                else:
                    own.copy_(mean)
        return ratio(change, norm)

    def _all_reduce(self, tensors: list[Tensor], op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> tuple[float, int]:
        """Reduce tensors in place, in buckets; returns seconds and bytes."""
        began, size = now(), 0
        try:
            for tensor in tensors:
                for bucket in torch.split(tensor, BUCKET_BYTES // tensor.element_size()):
                    dist.all_reduce(bucket, op=op)
                    size += bucket.numel() * bucket.element_size()
        except RuntimeError as error:  # what gloo and NCCL raise when a peer is gone or too late
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
        """An evaluation follows its average directly, so the replica is the average, unless replicas stay apart."""
        return swapped(self._pairs()) if self._job.averaging.apart and self._averaged else nullcontext()

    def settle(self) -> None:
        """Become the last average."""
        if self._job.averaging.apart and self._averaged:
            for own, last in self._pairs():
                own.copy_(last)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Parameters, each beside its last average."""
        pairs = zip(self._sections, self._last, strict=True)
        return [(section.values, last) for section, last in pairs if section.kind == "parameters" and last is not None]

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def _lay(wire: Tensor, values: Tensor, weight: float, last: Tensor | None) -> None:
    """Lay weighted values, or their differences to `last`, on the wire."""
    if not weight:
        wire.fill_(-0.0)  # an idle rank weighs nothing, whatever it holds; so a sum keeps the sign of its zeros
    elif last is None:
        wire.copy_(values).mul_(weight)
    else:
        wire.copy_((values - last).masked_fill_(values == last, 0.0).mul_(weight))


class Reducer:
    """Nothing to do beside the coordinator: ranks average among themselves."""

    def __init__(self, job: Job, done: Callable[[Reduced | Exception], None]) -> None: ...

    def __enter__(self) -> Reducer:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def submit(self, order: Reduce) -> None:
        """Never asked for."""
        raise AssertionError("a collective needs no reducer")
