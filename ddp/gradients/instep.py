"""What ranks do together inside a step: the seam between a replica's step and those who average gradients, shard or wrap.

A step is: `begin`, forward through `module`, backward of the loss times what `begin` gave, `exchange`, `clip`, the
optimizer, `end`. Each rank has its slice of the global batch.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import MAX
from ddp.core.events import Probe, Sums
from ddp.core.spans import Batch
from ddp.gradients.flat_gradients import FlatGradients
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.flat import FlatState
from ddp.replica.sums import sums_of


class InStep(Protocol):
    """One rank's part."""

    module: nn.Module
    """What the loss is computed with."""

    def begin(self, batch: Batch) -> float:
        """Before the forward pass of a slice: clear the gradients. Returns the factor on the loss before backward."""
        ...

    def idle(self, batch: Batch) -> None:
        """In place of forward and backward, where the slice is empty."""
        ...

    def exchange(self, batch: Batch) -> None:
        """After the backward pass: `.grad` of what the optimizer moves becomes the global batch's mean. Raises
        ExchangeBroken."""
        ...

    def clip(self, limit: float) -> None:
        """Scale the gradients down to this L2 norm over all parameters that the optimizer moves."""
        ...

    def end(self) -> None:
        """After the optimizer: `module` has the new parameters."""
        ...

    def undo(self) -> None:
        """Take back what a step changed before its exchange broke."""
        ...


def moved(state: FlatState, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What `optimizer` moves, in the model's order."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [p for _, p in state.named if id(p) in held]


def meet_counters(batch: Batch, gradients: FlatGradients, collectives: Collectives) -> None:
    """After the exchange of `gradients`: integer buffers take the maximum over the ranks, where they may differ. Raises
    ExchangeBroken."""
    # A rank without a sample did not count this batch in its buffers.
    if batch.idles or gradients.apart():
        collectives.all_reduce(gradients.counters, MAX)
        gradients.learn()


class GradientAverage:
    """Gradients and the changes of buffers, averaged with the weight of their samples, between backward and optimizer."""

    def __init__(
        self,
        module: nn.Module,
        state: FlatState,
        collectives: Collectives,
        meter: Meter,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.module, self._state, self._collectives, self._meter = module, state, collectives, meter
        self._optimizer = optimizer
        self._gradients = FlatGradients(state, collectives.transport.empty)
        self._probed = (-1, 0)
        """Epoch and size of the global batch of the last probe."""
        self.probes: list[Probe] = []
        """Not reported yet."""

    def begin(self, batch: Batch) -> float:
        """The mean of a slice is weighted when it is exchanged."""
        self._gradients.zero()
        return 1.0

    def idle(self, batch: Batch) -> None:
        """Gradients of zero weigh nothing."""

    def exchange(self, batch: Batch) -> None:
        """In one reduction for each data type."""
        gradients, meter = self._gradients, self._meter
        began = now()
        if due := self._probed != (batch.epoch, batch.total):
            gradients.gather()
        before = self._sums() if due else ()
        gradients.pack(batch.samples / batch.total)
        meter.add("copy", began)
        self._collectives.all_reduce(gradients.flats)
        meet_counters(batch, gradients, self._collectives)
        began = now()
        gradients.unpack()
        if due:
            self._probed = (batch.epoch, batch.total)
            self.probes.append(Probe(batch.samples, batch.total, before, self._sums()))
        meter.add("copy", began)

    def _sums(self) -> Sums:
        self._state.gather()
        buffers = (section.values for section in self._state.sections if section.kind == "buffers")
        return sums_of(self._gradients.gradients, buffers)

    def clip(self, limit: float) -> None:
        """Every rank has all gradients."""
        torch.nn.utils.clip_grad_norm_(moved(self._state, self._optimizer), limit)

    def end(self) -> None:
        """Every rank has moved all parameters."""

    def undo(self) -> None:
        """Put the buffers back."""
        self._gradients.undo()

    def rebase(self) -> None:
        """Changes of buffers count from here."""
        self._gradients.rebase()
