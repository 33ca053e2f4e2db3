"""Own the step of ranks that hold the whole model: gradients and changes of buffers are averaged over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import MAX, spare
from ddp.core.spans import Batch
from ddp.gradients.buckets import Item, Launches, assign, caps
from ddp.gradients.comparison import ReplicaComparison
from ddp.gradients.step_gradients import StepGradients
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.flat import FlatState
from ddp.replica.gradient_sync import moved
from ddp.replica.step_sketches import NoSketches, StepSketches, whole


def meet_counters(batch: Batch, gradients: StepGradients, collectives: Collectives) -> None:
    """Give integer buffers the maximum over the ranks, where they may differ, after the exchange of `gradients`. Raises
    ExchangeBroken."""
    # A rank without a sample did not count this batch in its buffers.
    if batch.idles or gradients.apart():
        collectives.all_reduce(gradients.counters, MAX)
        gradients.learn()


class GradientAverage:
    """A `GradientSync` that averages gradients, weighted by samples, between backward pass and optimizer.

    Where there is enough of them (`caps`), complete buckets go during the backward pass. In the first step of an epoch, or
    of another size, they all go at the end: it shows whether a gradient comes more than once, as in reentrant checkpointing.
    Then none is early.
    """

    def __init__(
        self,
        module: nn.Module,
        state: FlatState,
        collectives: Collectives,
        meter: Meter,
        optimizer: torch.optim.Optimizer,
        sketches: StepSketches | None = None,
        compare: int = 0,
        ranks: int = 0,
    ) -> None:
        """`compare`: steps after which parameters are compared with the other ranks'; 0: never. `ranks`: that begin."""
        self.module, self._state, self._collectives, self._meter = module, state, collectives, meter
        self._optimizer = optimizer
        sizes = caps(sum(p.nbytes for p in state.parameters), spare(collectives.transport.config))
        plan = assign([Item(p.nbytes, str(p.dtype)) for p in state.parameters], sizes) if sizes else None
        self._gradients = StepGradients(state, collectives.transport.empty, plan)
        self._launches = Launches(self._gradients.early)
        self._early = {index for bucket in self._gradients.early for index in bucket}
        self._gradients.arrived = self._arrive if self._early else None
        self._arrivals: Counter[int] = Counter()
        """How often the gradient of each parameter came while nothing was sent."""
        self._weight = 0.0
        self._counting = self._may_send = self._sending = False
        self._unfinished = False
        """Other passes of this step follow, in which the same gradients come again."""
        self._counted = (-1, 0)
        """Epoch and size of the global batch of the last step in which all went at the end."""
        self._sketches = sketches or NoSketches()
        self._comparison = ReplicaComparison(state.parameters, collectives, compare, optimizer, ranks)

    def begin(self, batch: Batch) -> float:
        """Clear the gradients; the mean of a slice is weighted when it goes to its bucket."""
        self._gradients.clear()  # first: a comparison that breaks is undone
        self._comparison.begin()
        self._launches.reset()
        self._weight, self._unfinished = batch.samples / batch.total, False
        self._sketches.begin()
        due = self._counted != (batch.epoch, batch.total)
        if due:
            self._arrivals.clear()
        self._counting = due or not self._arrivals
        self._may_send, self._sending = not due and max(self._arrivals.values(), default=2) == 1, False
        return 1.0

    def backward(self) -> None:
        """Send buckets from here on: what the user's loss does to gradients is done."""
        self._sending = self._may_send and not self._unfinished

    def _arrive(self, index: int) -> None:
        """Send the buckets that are complete with this gradient. Raises ValueError if it has gone already."""
        if not self._sending:
            self._arrivals[index] += self._counting and not self._unfinished
        elif index in self._early:
            try:
                for number in self._launches.arrive(index):
                    self._sketch(self._gradients.early[number])
                    self._collectives.start(self._gradients.send(self._weight))
            except ValueError as error:
                raise ValueError(
                    f"the gradient of {self._state.named[index][0]} {error}: call backward once, and checkpoint with "
                    "use_reentrant=False, or take mode=zero1"
                ) from None

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Send nothing but in the last pass: gradients add up in their places."""
        self._unfinished, self._sending = not last, False
        return nullcontext()

    def idle(self, batch: Batch) -> None:
        """Do nothing: gradients of zero weigh nothing."""

    def exchange(self, batch: Batch) -> None:
        """Average what has not gone yet, in one reduction for each data type, and wait for the rest."""
        gradients, meter = self._gradients, self._meter
        began = now()
        early, sketches = len(gradients.early), self._sketches
        gone = {index for bucket in gradients.early[: gradients.sent] for index in bucket}
        self._sketch(index for index in range(len(self._state.parameters)) if index not in gone)
        sketches.exchange()
        gradients.pack(self._weight)
        meter.add("copy", began)
        for flat in gradients.flats[gradients.sent : early]:  # one by one, as they go on ranks that had them early
            self._collectives.all_reduce([flat])
        self._collectives.all_reduce(gradients.flats[early:])
        meet_counters(batch, gradients, self._collectives)
        began = now()
        gradients.unpack()
        self._counted = batch.epoch, batch.total
        sketches.end(batch.samples, batch.total, whole(self._state.parameters))
        meter.add("copy", began)

    def _sketch(self, indices: Iterable[int]) -> None:
        """Sketch gradients as they are before they are weighed, if this step is drawn."""
        self._sketches.add(whole(self._state.parameters[index] for index in indices))

    def agree(self, finite: bool) -> bool:
        """Return the same: every rank has all gradients."""
        return finite

    def clip(self, limit: float) -> None:
        """Clip by the norm of all gradients, which every rank has."""
        torch.nn.utils.clip_grad_norm_(moved(self._state, self._optimizer), limit)

    def end(self) -> None:
        """Do nothing: every rank has moved all parameters."""

    def undo(self) -> None:
        """Put the buffers back."""
        self._gradients.undo()

    def rebase(self) -> None:
        """Count changes of buffers from here."""
        self._gradients.rebase()
