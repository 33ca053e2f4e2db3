"""The worker's side of the protocol: a state machine from orders to actions. Pure; runtime and simulator play it.

Grants queue up; an order to average, apply, evaluate or stop is obeyed at the next batch boundary, in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.commands import Apply, Average, Evaluate, RankCommand, Stop, Train
from ddp.core.errors import ProtocolError
from ddp.core.spans import Batch


@dataclass(frozen=True, slots=True)
class Step:
    """Action: train this batch, the cohort having seen `seen` samples (the learning rate is a function of it)."""

    batch: Batch
    seen: float
    last: bool
    """No other batch is at hand: report after it."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Action: wait for orders."""


Action = Step | Average | Apply | Evaluate | Stop | Idle


@dataclass(frozen=True, slots=True)
class Worker:
    """State of a worker. Methods return the next one."""

    grants: tuple[Train, ...] = ()
    offset: int = 0
    """Steps of the first grant that are done."""
    own: int = 0
    """Samples of the first grant that are trained."""
    orders: tuple[Average | Apply | Evaluate | Stop, ...] = ()
    stopped: bool = False

    def receive(self, order: RankCommand) -> Worker:
        """Take note of an order. Raises ProtocolError after a stop."""
        if self.stopped:
            raise ProtocolError(f"{order} arrived after the order to stop")
        if isinstance(order, Train):
            return replace(self, grants=(*self.grants, order))
        return replace(self, orders=(*self.orders, order))

    def act(self) -> tuple[Worker, Action]:
        """What to do now. Taking a `Step` counts it as done."""
        if self.orders:
            order = self.orders[0]
            return replace(self, orders=self.orders[1:], stopped=isinstance(order, Stop)), order
        if not self.grants:
            return self, Idle()
        grant = self.grants[0]
        batch = grant.chunk.at(self.offset)
        finished = self.offset + 1 == grant.chunk.steps
        step = Step(batch, grant.seen + grant.pace * self.own, last=finished and len(self.grants) == 1)
        if finished:
            return replace(self, grants=self.grants[1:], offset=0, own=0), step
        return replace(self, offset=self.offset + 1, own=self.own + batch.samples), step

    def forget_round(self) -> Worker:
        """A round broke: the evaluation that was to follow it is off, new orders will come."""
        kept = tuple(order for order in self.orders if not isinstance(order, (Average, Apply, Evaluate)))
        return replace(self, orders=kept)
