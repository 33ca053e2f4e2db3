"""Own the synchronous step of ranks with the whole model: gradients and changes of buffers are averaged over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import MAX, spare
from ddp.core.samples.spans import Batch
from ddp.gradients.buckets import Item, Launches, assign, caps
from ddp.gradients.comparison import ReplicaComparison
from ddp.gradients.step_gradients import StepGradients
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.evidence.step_sketches import NoSketches, StepSketches, whole
from ddp.replica.gradient_sync import moved
from ddp.replica.memory.flat import FlatState


def meet_counters(batch: Batch, gradients: StepGradients, collectives: Collectives) -> None:
    """Set integer buffers to their maximum over the ranks if they may differ. Call it after the exchange of `gradients`.
    Raises ExchangeBroken."""
    # A rank without a sample did not count this batch in its buffers.
    if batch.idles or gradients.apart():
        collectives.all_reduce(gradients.counters, MAX)
        gradients.learn()


class GradientAverage:
    """A `GradientSync` that averages gradients, weighted by samples, between the backward pass and the optimizer.

    If there are enough gradients (`caps`), complete buckets are sent during the backward pass. In the first step of an
    epoch or of another batch size, all buckets are sent at the end instead. That step counts how often each gradient
    arrives: if one arrives more than once, as with reentrant checkpointing, buckets are never sent early.
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
        """`compare`: steps between comparisons of the parameters with other ranks'; 0: never. `ranks`: number of ranks at
        the start."""
        self.module, self._state, self._collectives, self._meter = module, state, collectives, meter
        self._optimizer = optimizer
        sizes = caps(sum(p.nbytes for p in state.parameters), spare(collectives.transport.config))
        plan = assign([Item(p.nbytes, str(p.dtype)) for p in state.parameters], sizes) if sizes else None
        self._gradients = StepGradients(state, collectives.transport.empty, plan)
        self._launches = Launches(self._gradients.early)
        self._early = {index for bucket in self._gradients.early for index in bucket}
        self._gradients.arrived = self._arrive if self._early else None
        self._arrivals: Counter[int] = Counter()
        """How often the gradient of each parameter arrived in steps that sent no bucket early."""
        self._weight = 0.0
        self._counting = self._may_send = self._sending = False
        self._unfinished = False
        """Whether further passes of this step follow, in which the same gradients arrive again."""
        self._counted = (-1, 0)
        """Epoch and global batch size of the last exchanged step."""
        self._sketches = sketches or NoSketches()
        self._comparison = ReplicaComparison(state.parameters, collectives, compare, optimizer, ranks)

    def begin(self, batch: Batch) -> float:
        """Clear the gradients. Return 1, the factor on the loss: gradients are weighted when their bucket is sent."""
        self._gradients.clear()  # first: if the comparison fails, the step is undone
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
        """Allow buckets to be sent from now on: the user's loss changes no more gradients."""
        self._sending = self._may_send and not self._unfinished

    def _arrive(self, index: int) -> None:
        """Send the buckets that this gradient completes. Raises ValueError if its bucket was sent already."""
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
        """Send nothing before the last pass of a step, so that gradients accumulate."""
        self._unfinished, self._sending = not last, False
        return nullcontext()

    def idle(self, batch: Batch) -> None:
        """Do nothing: a rank without samples contributes gradients with weight zero."""

    def exchange(self, batch: Batch) -> None:
        """Average the gradients that are not sent yet, in one reduction for each data type, and wait for all."""
        gradients, meter = self._gradients, self._meter
        began = now()
        early, sketches = len(gradients.early), self._sketches
        gone = {index for bucket in gradients.early[: gradients.sent] for index in bucket}
        self._sketch(index for index in range(len(self._state.parameters)) if index not in gone)
        sketches.exchange()
        gradients.pack(self._weight)
        meter.add("copy", began)
        for flat in gradients.flats[gradients.sent : early]:  # one by one, as on ranks that sent them early
            self._collectives.all_reduce([flat])
        self._collectives.all_reduce(gradients.flats[early:])
        meet_counters(batch, gradients, self._collectives)
        began = now()
        gradients.unpack()
        self._counted = batch.epoch, batch.total
        sketches.end(batch.samples, batch.total, whole(self._state.parameters))
        meter.add("copy", began)

    def _sketch(self, indices: Iterable[int]) -> None:
        """Sketch gradients before they are weighted, if this step is drawn."""
        self._sketches.add(whole(self._state.parameters[index] for index in indices))

    def agree(self, finite: bool) -> bool:
        """Return `finite`: every rank has the same gradients."""
        return finite

    def clip(self, limit: float) -> None:
        """Clip the gradients by their total norm; every rank has all of them."""
        torch.nn.utils.clip_grad_norm_(moved(self._state, self._optimizer), limit)

    def end(self) -> None:
        """Do nothing: every rank has updated all parameters."""

    def undo(self) -> None:
        """Restore the buffers to their values before the step."""
        self._gradients.undo()

    @property
    def bases(self) -> list[Tensor]:
        """Return what the changes of buffers are measured from."""
        return self._gradients.bases

    def rebase(self, bases: Sequence[Tensor] = ()) -> None:
        """Take the present buffers as the base of further changes, or those of the rank that they are from."""
        self._gradients.rebase(bases)
