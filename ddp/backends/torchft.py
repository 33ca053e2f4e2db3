"""`torchft`: Meta's torchft. Its DistributedDataParallel averages gradients. Its LocalSGD averages replicas, or its DiLoCo
with an outer optimizer. On CPUs of one host, over gloo.

torchft weighs all replicas alike, so what a rank contributes is scaled by its samples x ranks / samples of all. It adds up
in the type of the parameters: the average of identical replicas may differ from them by a rounding, unless two ranks weigh
alike. Buffers, which torchft leaves alone, are averaged as with `nccl`. A step or an average for which torchft does not
vote is undone; the coordinator then forms a new group and has lost samples trained again, which torchft by itself does not
do. State comes from the coordinator's orders, not from torchft's own recovery."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.futures import Future
from torchft import DistributedDataParallel
from torchft.local_sgd import DiLoCo, LocalSGD

from ddp.backends import allreduce, passed_state
from ddp.backends.base import AverageResult, RankContext
from ddp.backends.peer_module import PeerModule
from ddp.backends.torch_backend import TorchStep
from ddp.backends.torchft_group import Transport
from ddp.comm.collectives import Collectives
from ddp.comm.transports import memory
from ddp.comm.transports.base import MAX, SUM, ExchangeBroken
from ddp.core.messages.commands import Average
from ddp.core.samples.spans import Batch
from ddp.core.values.frozen import finite
from ddp.gradients.average import meet_counters
from ddp.gradients.step_gradients import StepGradients
from ddp.process.clock import now
from ddp.replica import sparse
from ddp.replica.memory.flat import swapped
from ddp.replica.memory.weighted_mean import ratio, square
from ddp.replica.replica import Replica
from ddp.replica.task import Job


class ManagedModule(DistributedDataParallel, PeerModule):  # type: ignore[misc]
    """torchft's wrapper, with PeerModule's error message.

    In torchft 0.2 a collective that breaks ends the process: its hook asserts that the broken work has a future. Here the
    step goes on to the vote, as torchft intends."""

    @staticmethod
    def _comm_hook(state, bucket):  # type: ignore[no-untyped-def]  # PyTorch refuses annotations in text
        try:
            return DistributedDataParallel._comm_hook(state, bucket)
        except AssertionError:
            if state.errored() is None:
                raise
            broken: Future[Tensor] = Future()
            broken.set_result(bucket.buffer())
            return broken


class ManagedStep(TorchStep):
    """A step of torchft's: quorum, forward and backward pass in its wrapper, buffers, vote."""

    takes_sparse = False

    def __init__(
        self, replica: Replica, job: Job, loop: RankContext, group: Transport, collectives: Collectives
    ) -> None:
        super().__init__(replica, job, loop)
        self._group, self._collectives = group, collectives
        self._buffers = StepGradients(replica.state, gradients=False)
        self._used = [1.0] * len(replica.state.parameters)

    def meet(self) -> None:
        """Do nothing: every step begins with a quorum."""

    def build(self) -> None:
        """Wrap the model in place. Its buffers are averaged here, not sent by rank 0."""
        known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        settings: dict[str, Any] = {name: False}
        self.module = ManagedModule(self._group.manager, self.replica.model, **settings)

    def begin(self, batch: Batch) -> float:
        """Form the quorum of this step, then begin it."""
        self._buffers.clear()
        self._collectives.measured(self._group.meet, 0)
        self.size = self._group.manager.num_participants()
        return super().begin(batch)

    def exchange(self, batch: Batch) -> None:
        """Average the buffers; vote. Raises ExchangeBroken."""
        super().exchange(batch)
        buffers, collectives = self._buffers, self._collectives
        buffers.pack(batch.samples / batch.total, used=self._used)
        collectives.all_reduce(buffers.flats)
        meet_counters(batch, buffers, collectives)
        collectives.measured(self._group.manager.commit, 0)
        buffers.unpack()

    def undo(self) -> None:
        """Restore the buffers."""
        super().undo()
        self._buffers.undo()

    @property
    def bases(self) -> list[Tensor]:
        """Return what the changes of buffers are measured from."""
        return self._buffers.bases

    def rebase(self, bases: Sequence[Tensor] = ()) -> None:
        """Take the present buffers as the base of further changes, or those of the rank that they are from."""
        self._buffers.rebase(bases)


class Backend(allreduce.Backend):
    """A rank's side."""

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        _refuse(job, loop)
        super().__init__(job, rank, loop)
        meeting = self.collectives.transport
        if not isinstance(meeting, memory.Transport):
            raise ValueError(
                "torchft is for ranks on CPUs of one host here: leave out cluster.transport and cluster.links"
            )
        sparse.refuse(sparse.declared(loop.replica.model), job.backend)
        self._group = Transport(meeting, job.deadline_s)
        self.collectives = Collectives(self._group, loop.meter, loop.heart)
        self.transport = self._group.name
        self._outer = [None] * len(self._sections)  # the outer optimizer is torchft's
        self._descent = _descent(job, loop.replica.model)
        self._trigger = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)

    def _diloco(self) -> DiLoCo:
        """Return DiLoCo as of the last average: it takes the model's parameters for that when it is made."""
        trained = [
            (s.values, last) for s, last in zip(self._sections, self._last, strict=True) if s.kind == "parameters"
        ]
        with swapped([(values, last) for values, last in trained if last is not None]):
            model, manager = self.loop.replica.model, self._group.manager
            return DiLoCo(manager, [model], self._trigger, self._descent, 1, pin_memory=False)

    def gradient_sync(self, replica: Replica) -> Any:
        """Return torchft's exchange of gradients."""
        step = ManagedStep(replica, self.job, self.loop, self._group, self.collectives)
        self._gradients = step  # type: ignore[assignment]  # it has the parts that are used: `bases`, `rebase`
        self._take_bases()
        return step

    def average(self, order: Average, samples: int) -> AverageResult:
        """Average by LocalSGD or DiLoCo. If the average is broken, the replica is as before."""
        self.loop.replica.state.gather()
        own = [section.values.clone() for section in self._sections]
        try:
            return self._synced(own, samples)
        except ExchangeBroken:
            for section, before in zip(self._sections, own, strict=True):
                section.values.copy_(before)
            raise

    @torch.no_grad()
    def _synced(self, own: list[Tensor], samples: int) -> AverageResult:
        if not self._wire:
            self._make_wire()
        weight = self.job.averaging.weight(samples)
        total = torch.tensor([weight], dtype=torch.float64)
        seconds, size = self.collectives.all_reduce([total])
        share = weight / (float(total) or 1.0)
        counted = [counter.clone() for counter in self._counters]
        began = now()
        for section, wire, last in zip(self._sections, self._wire, self._last, strict=True):
            if section.kind == "parameters":
                _lean(section.values, share * self._group.manager.members, last)
            else:
                wire.copy_(section.values).mul_(share) if share else wire.fill_(-0.0)
        self.loop.meter.add("copy", began)
        buffers = [w for s, w in zip(self._sections, self._wire, strict=True) if s.kind != "parameters"]
        for tensors, op in ((buffers, SUM), (counted, MAX)):
            more, sent = self.collectives.all_reduce(tensors, op)
            seconds, size = seconds + more, size + sent
        trained = [values for values in self._sections if values.kind == "parameters"]
        sent = sum(section.values.nbytes for section in trained)
        seconds += self.collectives.measured(self._vote, sent)
        return AverageResult(seconds, size + sent, *self._taken(own, counted))

    def _vote(self) -> None:
        """Have torchft average the parameters. Raises ExchangeBroken if it does not commit."""
        manager = self._group.manager
        before = manager.current_step()
        if self._descent is None:
            LocalSGD(manager, self.loop.replica.model, self.loop.replica.optimizer, 1).sync()
        else:
            with self._diloco():
                self._trigger.step()
        if manager.current_step() == before:
            manager.check()
            raise ExchangeBroken("torchft did not commit")

    def _taken(self, own: list[Tensor], counted: list[Tensor]) -> tuple[float | None, float | None]:
        """Note the average; return the divergence of this rank's `own` replica and the squared distance."""
        norm = change = 0.0
        for section, wire, last, before in zip(self._sections, self._wire, self._last, own, strict=True):
            if section.kind == "parameters":
                wire.copy_(section.values)
                norm, change = norm + square(section.values), change + square(before - section.values)
            else:
                section.values.copy_(wire)
            if last is not None:
                last.copy_(section.values)
        for counter, highest in zip(self._counters, counted, strict=True):
            counter.copy_(highest)
        self._counted, self._averaged = counted, True
        self._total.fill_(1.0)
        self._inner.scatter()
        return ratio(change, norm), finite(change)

    def send_state(self, round: int) -> None:
        """Write the result of the last average, with DiLoCo's velocities; or the whole state."""
        if not self._buffer:
            super().send_state(round)
            return
        state = {"wire": self._buffer, "counters": self._counted, "kept": self.average_state()}
        passed_state.write(self.job.scratch, round, state)

    def load_state(self, round: int) -> AverageResult:
        """Read what another rank sent."""
        result = super().load_state(round)
        state = passed_state.read(self.job.scratch, round, self.loop.device, plain=False)
        for velocity, other in zip(self.average_state(), state.get("kept", ()), strict=False):
            velocity.copy_(other)
        return result

    def average_state(self) -> list[Tensor]:
        """Return the velocities of DiLoCo's outer optimizer."""
        return [] if self._descent is None else [state["momentum_buffer"] for state in self._descent.state.values()]


def _refuse(job: Job, loop: RankContext) -> None:
    averaging = job.averaging
    if averaging.elastic is not None or averaging.optimizer_state or averaging.wire != "float64":
        raise ValueError("torchft averages parameters whole: leave out averaging.elastic, optimizer_state and wire")
    if loop.device.type != "cpu" or job.meet or job.links is not None:
        raise ValueError("torchft is for ranks on CPUs of one host here: use cluster.device=cpu, and no cluster.links")


def _descent(job: Job, model: nn.Module) -> torch.optim.SGD | None:
    """Return DiLoCo's outer optimizer, whose velocities exist from the start; None: plain averages."""
    if job.averaging.outer == "none":
        return None
    lr, momentum = job.averaging.outer_rates
    ahead = job.averaging.outer == "nesterov" and momentum > 0
    descent = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, nesterov=ahead)
    for parameter in model.parameters():
        descent.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return descent


def _lean(values: Tensor, factor: float, last: Tensor | None) -> None:
    """Scale what torchft averages, the parameters or their distance to the `last` average, by `factor`."""
    if factor == 1.0:
        return
    if last is not None:
        values.copy_(last + (values - last).mul_(factor) if factor else last)
    elif factor:
        values.mul_(factor)
    else:
        values.zero_()
