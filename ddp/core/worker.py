"""The worker's side of the protocol: a state machine from orders to actions. Pure; the runtime and the simulator run it.

There are two queues. Grants, and orders given `in_turn`, are executed in their order (`lane`); all other orders at the next
batch boundary, in order of arrival."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import (
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
from ddp.core.samples.spans import Batch, measure
from ddp.core.values.frozen import replace, value


@value(frozen=True)
class Step:
    """Action: train this batch, when all ranks have seen `seen` samples, which determine the learning rate."""

    batch: Batch
    seen: float
    last: bool
    """Whether it is the last step of its grant: report after it."""


@value(frozen=True)
class Idle:
    """Action: wait for orders."""


FOLLOWING = (Average, Apply, Evaluate, Save)
"""Orders that belong to a round, and are dropped when it breaks."""

Lane = tuple[Train | Average | Evaluate | Save, ...]
Action = Step | Join | Leave | Average | Apply | SendState | LoadState | Evaluate | Save | Stop | Idle


@value(frozen=True)
class Worker:
    """State of a worker. Methods return the next state."""

    lane: Lane = ()
    """Grants, and orders in turn."""
    offset: int = 0
    """Steps done of the first grant."""
    own: int = 0
    """Samples trained of the first grant (of a shared one, by all ranks that share it)."""
    seen: float = 0.0
    """Samples seen at the last step: the count never decreases."""
    orders: tuple[Join | Leave | Average | Apply | SendState | LoadState | Evaluate | Save | Stop, ...] = ()
    halted: bool = False
    """Whether a round broke here: no training until a new group is formed."""
    deaf: bool = False
    """Whether to drop orders that belong to a broken round: no order has come yet that was sent after the break was
    known."""
    stopped: bool = False

    def receive(self, order: RankCommand) -> Worker:
        """Accept an order. Raises ProtocolError after a stop, and for a `Shorten` to a point that the rank has passed."""
        if self.stopped:
            raise ProtocolError(f"{order} arrived after the order to stop")
        if isinstance(order, Train):
            return replace(self, lane=(*self.lane, order))
        if isinstance(order, FOLLOWING):
            if self.deaf:
                return self
            if not isinstance(order, Apply) and order.in_turn:
                return replace(self, lane=(*self.lane, order))
        if isinstance(order, Pace):
            return replace(self, lane=tuple(self._paced(order)))
        if isinstance(order, Shorten):
            return replace(self, lane=self._shortened(order))
        if isinstance(order, (Join, LoadState)):
            self = replace(self, deaf=False)
        if isinstance(order, Join) and order.void:
            self = replace(self, lane=(), offset=0, own=0)
        if isinstance(order, Join):  # members of an older group may be gone, and would be waited for in vain
            self = replace(self, orders=tuple(other for other in self.orders if not isinstance(other, Join)))
        return replace(self, orders=(*self.orders, order))

    def act(self) -> tuple[Worker, Action]:
        """Return the next state and action. A returned `Step` counts as done."""
        if self.orders:
            order, *rest = self.orders
            if isinstance(order, Leave) and self.halted:  # its group broke already: all ranks know that it has left
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
        """Yield the lane with its grants at the place in the schedule that `order` gives."""
        seen, own = float(order.seen), self.own
        for entry in self.lane:
            if isinstance(entry, Train):
                entry = replace(entry, seen=math.floor(seen - order.pace * own), pace=order.pace)
                seen += order.pace * (measure(entry.chunk.spans(entry.chunk.steps)) - own)
                own = 0
            yield entry

    def _shortened(self, order: Shorten) -> Lane:
        for place, entry in enumerate(self.lane):
            if isinstance(entry, Train):
                chunk = replace(entry.chunk, stop=order.stop)
                if chunk.steps > (0 if place else self.offset):
                    return (*self.lane[:place], replace(entry, chunk=chunk), *self.lane[place + 1 :])
                break
        raise ProtocolError(f"{order} came too late")

    def ahead(self) -> Iterator[Batch]:
        """Yield the granted batches that have not begun, in order."""
        done = self.offset
        for order in self.lane:
            if isinstance(order, Train):
                yield from map(order.chunk.at, range(done, order.chunk.steps))
                done = 0

    @property
    def begun(self) -> int | None:
        """Steps done of the grant that is not finished; None: there is none."""
        return self.offset if any(isinstance(entry, Train) for entry in self.lane) else None

    def broke(self) -> Worker:
        """Return the state after a collective broke: orders of the round are dropped, and no batch is trained until a group
        is formed. If it broke at the end of the run, the rank stays, as it owes its last report."""
        return replace(
            self,
            lane=tuple(order for order in self.lane if not isinstance(order, FOLLOWING)),
            orders=tuple(order for order in self.orders if not isinstance(order, FOLLOWING)),
            halted=True,
            deaf=True,
            stopped=False,
        )
