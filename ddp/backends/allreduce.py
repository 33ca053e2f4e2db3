"""`nccl`: ranks average in an all-reduce (NCCL on GPUs, memory or gloo elsewhere). In place, on the transport that applies
(`ddp.comm.transports`).

By default averages are sent in float64: weight times value is exact there, or off by far less than a float32 can tell. So
the average of identical replicas equals the replicas bit for bit, whatever the weights (for types up to float32). A
narrower wire type sends the differences to the last average, which all ranks hold with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ddp.backends import passed_state
from ddp.backends.base import AverageResult, GroupBackend, RankContext
from ddp.comm.transports.base import MAX, SUM
from ddp.core.messages.commands import Average
from ddp.core.values.frozen import finite
from ddp.gradients.average import GradientAverage
from ddp.process.clock import now
from ddp.replica.memory.buffers import finite_part
from ddp.replica.memory.flat import swapped
from ddp.replica.memory.weighted_mean import PIECE, pieces, ratio, square
from ddp.replica.optim.optimizer_state import InnerOptimizer
from ddp.replica.optim.outer_optimizer import outer
from ddp.replica.task import Job

if TYPE_CHECKING:
    from ddp.core.settings.averaging import Averaging
    from ddp.replica.memory.flat import FlatState
    from ddp.replica.replica import Replica


class Backend(GroupBackend):
    """A rank's side: a process group of all ranks."""

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        super().__init__(job, rank, loop)
        self._gradients: GradientAverage | None = None
        self._bases: list[Tensor] = []
        """What the other ranks measure changes of buffers from, before this one exchanges any."""
        self._prepare_average()

    def _prepare_average(self) -> None:
        settings, replica = self.job.averaging, self.loop.replica
        self._inner = InnerOptimizer(replica.optimizer, settings)
        self._sections = [s for s in replica.state.sections if s.values.is_floating_point()] + self._inner.sections
        self._counters = [flat for flat in replica.state.tensors if not flat.is_floating_point()]
        self._outer = [outer(settings, s.values) if s.kind == "parameters" else None for s in self._sections]
        self._exact = settings.wire == "float64"
        # At first the last average is the initial state, which has the same bits on all ranks.
        kept = not self._exact or settings.apart or settings.outer != "none"
        self._last = [section.values.clone() if kept else None for section in self._sections]
        self._wire: list[Tensor] = []
        self._buffer: list[Tensor] = []
        self._weight = torch.zeros(1, dtype=torch.float64, device=self.loop.device)
        self._averaged = False

    def send_state(self, round: int) -> None:
        """Write the result of the last collective to a file; or the whole state, if gradients are exchanged inside
        steps."""
        state = {"wire": self._buffer, "counters": self._counted}
        if not self._buffer:
            state = {**self.loop.replica.capture(), "bases": self._sent_bases()}
        passed_state.write(self.job.scratch, round, state)

    def load_state(self, round: int) -> AverageResult:
        """Read what another rank sent, and apply it as the other ranks did."""
        began, replica = now(), self.loop.replica
        state = passed_state.read(self.job.scratch, round, self.loop.device, plain=False)
        apart: tuple[float | None, float | None] = (0.0, 0.0)
        if "wire" in state:
            self._buffer[0].copy_(state["wire"][0])
            self._total.fill_(1.0)  # the sender has divided by it already
            self._counted = state["counters"]
            apart = self._take()
        else:
            replica.restore(state)
            self._bases = state["bases"]
            if self._gradients is not None:
                self._take_bases()
        size = replica.state.bytes
        return AverageResult(self.loop.meter.add("copy", began, size=size) - began, size, *apart)

    def gradient_sync(self, replica: Replica) -> GradientAverage:
        """Return the exchange that averages gradients between the backward pass and the optimizer's step."""
        self._gradients = GradientAverage(
            replica.model,
            replica.state,
            self.collectives,
            self.loop.meter,
            replica.optimizer,
            replica.step_sketches,
            self.job.compare,
            self.job.world_size,
        )
        self._take_bases()
        return self._gradients

    def _sent_bases(self) -> list[Tensor]:
        return [] if self._gradients is None else self._gradients.bases

    def _take_bases(self) -> None:
        """Measure changes of buffers from where the rank does that this one's buffers are from: an epoch callback may have
        changed them since its last exchange."""
        assert self._gradients is not None
        self._gradients.rebase(self._bases)
        self._bases = []

    def average(self, order: Average, samples: int) -> AverageResult:
        """Average the replicas, weighted by `samples`."""
        began, replica, meter = now(), self.loop.replica, self.loop.meter
        replica.state.gather()
        self._inner.gather()
        if not self._wire:
            self._make_wire()
        weight = self.job.averaging.weight(samples)
        self._weight.fill_(weight)
        seconds, size = 0.0, 0
        if not self._exact:  # the shares need the total weight first
            meter.add("copy", began)
            seconds, size = self.collectives.all_reduce([self._weight])
            began = now()
            weight /= float(self._weight) or 1.0
        else:
            self._total.fill_(weight)
        for section, wire, last in zip(self._sections, self._wire, self._last, strict=True):
            for piece in self._pieces(wire):
                _lay(wire[piece], section.values[piece], weight, None if self._exact or last is None else last[piece])
        meter.add("copy", began)
        # The total weight is sent behind the values: a collective of its own would cost as much again for a small
        # model. A
        # round that breaks leaves the replica unchanged, its integer buffers too.
        self._counted = [counter.clone() for counter in self._counters]
        for tensors, op in ((self._buffer, SUM), (self._counted, MAX)):
            more, sent = self.collectives.all_reduce(tensors, op)
            seconds, size = seconds + more, size + sent
        began = now()
        # If the total is 0, no rank has trained since the last average.
        divergence, distance = self._take() if float(self._total) else (0.0, 0.0)
        meter.add("copy", began)
        return AverageResult(seconds, size, divergence, distance)

    def _make_wire(self) -> None:
        """Allocate one tensor to send all sections in, followed by the weight if the wire type is exact."""
        dtype = getattr(torch, self.job.averaging.wire)
        sizes = [section.values.numel() for section in self._sections]
        whole = self.collectives.transport.empty("average", sum(sizes) + int(self._exact), dtype)
        *self._wire, rest = torch.split(whole, [*sizes, int(self._exact)])
        self._buffer = [whole]
        self._total = rest if self._exact else self._weight

    def _pieces(self, wire: Tensor) -> Iterator[slice]:
        """Yield the slices to work on: pieces that fit the cache on the CPU, else everything at once."""
        return pieces(wire.numel(), PIECE if wire.device.type == "cpu" else max(wire.numel(), 1))

    def _take(self) -> tuple[float | None, float | None]:
        """Apply the average in the wire tensor to the replica; return the divergence and the squared distance."""
        elastic = self.job.averaging.elastic
        total = float(self._total) if self._exact else 1.0
        norm = change = 0.0
        for section, wire, last, step in zip(self._sections, self._wire, self._last, self._outer, strict=True):
            trained = section.kind == "parameters"
            for piece in self._pieces(wire):
                own, then = section.values[piece], None if last is None else last[piece]
                mean = wire[piece].div_(total) if self._exact else wire[piece]
                # The wire tensor keeps the received values, as a rank that missed the round may ask for them.
                mean = mean.to(own.dtype, copy=then is not None)
                if then is not None and not self._exact:
                    mean.add_(finite_part(then))
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
                if self.job.averaging.apart:
                    own.sub_(excess, alpha=elastic)
                else:
                    own.copy_(mean)
        for counter, highest in zip(self._counters, self._counted, strict=True):
            counter.copy_(highest)
        self._inner.scatter()
        self._averaged = True
        return ratio(change, norm), finite(change)

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Swap in the last average if replicas differ from it (elastic averaging); else the replica equals it already, as
        an evaluation follows its average directly."""
        return swapped(self._pairs()) if self.job.averaging.apart and self._averaged else nullcontext()

    def average_state(self) -> list[Tensor]:
        """Return the velocities of the outer optimizer, which are equal on all ranks."""
        return [step.velocity for step in self._outer if step is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the last average and the outer optimizer's velocities. The replica may have moved on from that average.
        Return the replica itself if gradients are exchanged inside steps (a lone rank does not, but others will join
        it), and no average before the first one."""
        kept = {"kept": self.average_state()}
        if not self._averaged:
            whole = self._gradients is not None or self.job.policy.every_step
            return {**super().state_dict(), **kept, "bases": self._sent_bases()} if whole else kept
        pairs = zip(self._sections, self._wire, self._last, strict=True)
        averages = [last if last is not None else wire.to(section.values.dtype) for section, wire, last in pairs]
        return {"averages": averages, "counters": self._counted, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the replica to that average."""
        if "tensors" in state:
            super().load_state_dict(state)
            self._bases = state["bases"]
        for own, other in zip(self.average_state(), state["kept"], strict=True):
            own.copy_(other)
        if "averages" not in state:
            return
        if not self._wire:
            self._make_wire()
        self._inner.gather()
        for section, wire, last, mean in zip(self._sections, self._wire, self._last, state["averages"], strict=True):
            section.values.copy_(mean)
            wire.copy_(mean)
            if last is not None:
                last.copy_(mean)
        for counter, highest in zip(self._counters, state["counters"], strict=True):
            counter.copy_(highest)
        self._inner.scatter()
        self._counted, self._averaged = [counter.clone() for counter in self._counters], True

    def finish(self) -> None:
        """Set the replica to the last average, if the two differ."""
        if self.job.averaging.apart and self._averaged:
            for own, last in self._pairs():
                own.copy_(last)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of (parameters, their last average)."""
        pairs = zip(self._sections, self._last, strict=True)
        return [(section.values, last) for section, last in pairs if section.kind == "parameters" and last is not None]


def collectives(state: FlatState, settings: Averaging) -> int:
    """Return the number of collectives of an average, one after the other."""
    return 1 + len(state.counters) + (settings.wire != "float64")


def _lay(wire: Tensor, values: Tensor, weight: float, last: Tensor | None) -> None:
    """Write values times `weight`, or their differences to `last` times `weight`, to the wire tensor. `_take`
    adds `last`; where that is not finite both take zero for it."""
    if not weight:
        wire.fill_(-0.0)  # ignores any NaN of an idle rank; -0.0 keeps the sign of zeros in the sum
    elif last is None:
        wire.copy_(values).mul_(weight)
    else:
        wire.copy_((values - finite_part(last)).mul_(weight))
