"""The worker's side of the protocol: a state machine from orders to actions. Pure; runtime and simulator play it.

Two lanes. What is granted stands in turn, and so do orders that say so; all other orders are obeyed at the next batch
boundary, in order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddp.core.commands import (
    Apply,
    Average,
    Evaluate,
    Join,
    Leave,
    LoadState,
    Pace,
    RankCommand,
    Save,
    SendState,
    Shorten,
    Stop,
    Train,
)
from ddp.core.errors import ProtocolError
from ddp.core.spans import Batch, measure
from ddp.core.values import replace


@dataclass(frozen=True)
class Step:
    """Action: train this batch, the cohort having seen `seen` samples (the learning rate is a function of it)."""

    batch: Batch
    seen: float
    last: bool
    """The last of its grant: report after it."""


@dataclass(frozen=True)
class Idle:
    """Action: wait for orders."""


FOLLOWING = (Average, Apply, Evaluate, Save)
"""Orders that follow from a round, and are off when it breaks."""

Action = Step | Join | Leave | Average | Apply | SendState | LoadState | Evaluate | Save | Stop | Idle


@dataclass(frozen=True)
class Worker:
    """State of a worker. Methods return the next one."""

    lane: tuple[Train | Average | Evaluate | Save, ...] = ()
    """Grants, and orders in turn."""
    offset: int = 0
    """Steps of the first grant that are done."""
    own: int = 0
    """Samples of the first grant that are trained; of a shared one, by all who share it."""
    seen: float = 0.0
    """Of the last step: no later one goes back behind it."""
    orders: tuple[Join | Leave | Average | Apply | SendState | LoadState | Evaluate | Save | Stop, ...] = ()
    halted: bool = False
    """A round broke here: no training until a new group is formed."""
    deaf: bool = False
    """Nothing has come since that was sent in the knowledge of it: what would have followed the round is off."""
    stopped: bool = False

    def receive(self, order: RankCommand) -> Worker:
        """Note an order. Raises ProtocolError after a stop, and for an end that is behind the rank."""
        if self.stopped:
            raise ProtocolError(f"{order} arrived after the order to stop")
        if isinstance(order, Pace):
            return replace(self, lane=tuple(self._paced(order)))
        if isinstance(order, Shorten):
            return replace(self, lane=self._shortened(order))
        if self.deaf and isinstance(order, FOLLOWING):
            return self
        if isinstance(order, Train) or (isinstance(order, (Average, Evaluate, Save)) and order.in_turn):
            return replace(self, lane=(*self.lane, order))
        if isinstance(order, (Join, LoadState)):
            self = replace(self, deaf=False)
        if isinstance(order, Join) and order.void:
            self = replace(self, lane=(), offset=0, own=0)
        if isinstance(order, Join):  # the members of an older group may be gone, it would be waited for in vain
            self = replace(self, orders=tuple(other for other in self.orders if not isinstance(other, Join)))
        return replace(self, orders=(*self.orders, order))

    def act(self) -> tuple[Worker, Action]:
        """Return what to do now. Taking a `Step` counts it as done."""
        if self.orders:
            order, *rest = self.orders
            if isinstance(order, Leave) and self.halted:  # its group broke before: all know that it has left
                return replace(self, orders=tuple(rest)).act()
            halted = isinstance(order, Leave) or (self.halted and not isinstance(order, Join))
            return replace(self, orders=tuple(rest), halted=halted, stopped=isinstance(order, Stop)), order
        if self.halted or not self.lane:
            return self, Idle()
        first = self.lane[0]
        if not isinstance(first, Train):
            return replace(self, lane=self.lane[1:]), first
        batch = first.chunk.at(self.offset)
        last = self.offset + 1 == first.chunk.steps
        seen = max(self.seen, first.seen + first.pace * self.own)
        step = Step(batch, seen, last)
        if last:
            return replace(self, lane=self.lane[1:], offset=0, own=0, seen=seen), step
        return replace(self, offset=self.offset + 1, own=self.own + batch.total, seen=seen), step

    def _paced(self, order: Pace) -> Iterator[Train | Average | Evaluate | Save]:
        """Yield the lane, its grants at the place in the schedule that `order` tells."""
        seen, own = float(order.seen), self.own
        for entry in self.lane:
            if isinstance(entry, Train):
                entry = replace(entry, seen=math.floor(seen - order.pace * own), pace=order.pace)
                seen += order.pace * (measure(entry.chunk.spans(entry.chunk.steps)) - own)
                own = 0
            yield entry

    def _shortened(self, order: Shorten) -> tuple[Train | Average | Evaluate | Save, ...]:
        for place, entry in enumerate(self.lane):
            if isinstance(entry, Train):
                chunk = replace(entry.chunk, stop=order.stop)
                if chunk.steps > (0 if place else self.offset):
                    return (*self.lane[:place], replace(entry, chunk=chunk), *self.lane[place + 1 :])
                break
        raise ProtocolError(f"{order} came too late")

    def ahead(self) -> Iterator[Batch]:
        """Yield the batches that are granted and not begun, in their order."""
        done = self.offset
        for order in self.lane:
            if isinstance(order, Train):
                yield from map(order.chunk.at, range(done, order.chunk.steps))
                done = 0

    @property
    def begun(self) -> int | None:
        """The steps that are done of a grant that all share; None: it has none in hand."""
        shares = bool(self.lane) and isinstance(self.lane[0], Train) and self.lane[0].chunk.parts > 1
        return self.offset if shares else None

    def broke(self) -> Worker:
        """Return the state after a collective broke: what follows from it is off, nothing is trained until a group is
        formed. After one of the end the rank stays: it owes its last report."""
        return replace(
            self,
            lane=tuple(order for order in self.lane if not isinstance(order, FOLLOWING)),
            orders=tuple(order for order in self.orders if not isinstance(order, FOLLOWING)),
            halted=True,
            deaf=True,
            stopped=False,
        )
