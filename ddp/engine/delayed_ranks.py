"""Ranks behind links: what they and the coordinator send each other arrives when it would over them, in order.

Snapshots weigh what the model weighs, as does the average that comes back; other messages weigh nothing. Nothing is lost:
losses are delay. The coordinator is beside rank 0.
"""

from __future__ import annotations

import heapq
import itertools

from ddp.comm.transports.emulated import sleep_until
from ddp.core.commands import Apply, RankCommand
from ddp.core.events import Event, Lost, RankEvent, Ready, Snapshot, Tick
from ddp.core.link_costs import FROM, TO, Deliveries
from ddp.core.links import Links
from ddp.engine.ranks import Ranks
from ddp.process.clock import now

POLL_S = 0.002
"""Shorter waits are slept: a poll ends milliseconds late."""
VALUE_BYTES = 4
"""Of a parameter in a snapshot."""


class DelayedRanks:
    """Ranks as the coordinator's loop sees them."""

    def __init__(self, ranks: Ranks, links: Links) -> None:
        self._ranks, self._deliveries = ranks, Deliveries(links)
        self._held: list[tuple[float, int, RankEvent | Lost | RankCommand]] = []
        """Under way: when it arrives, and in which order it was sent."""
        self._order = itertools.count()
        self._ticked = now()
        self._size = 0
        """Bytes of a snapshot."""

    def send(self, command: RankCommand) -> None:
        """Send an order on its way."""
        size = self._size if isinstance(command, Apply) else 0
        self._hold(self._deliveries.due(command.rank, size, FROM, now()), command)

    def drop(self, rank: int) -> None:
        """End a rank that the run goes on without."""
        self._ranks.drop(rank)

    def restart(self, rank: int, life: int) -> None:
        """Start a rank again that was dropped. What was under way to or from the one before arrives no more."""
        self._held = [entry for entry in self._held if entry[2].rank != rank]
        heapq.heapify(self._held)
        self._ranks.restart(rank, life)

    def events(self, timeout_s: float) -> list[Event]:
        """Return what has arrived; wait up to `timeout_s` for the first event, and add a `Tick` as often as that."""
        left = max(self._held[0][0] - now(), 0.0) if self._held else timeout_s
        passed: list[Event] = []
        for event in self._ranks.events(min(left, timeout_s) if left > POLL_S else 0.0):
            if isinstance(event, Tick):
                passed += self._tick(event, timeout_s)
            elif isinstance(event, RankEvent | Lost):
                self._take(event)
            else:
                passed.append(event)
        if not passed and left <= POLL_S and self._held:
            sleep_until(self._held[0][0])
        return [*self._arrived(), *passed]

    def _take(self, event: RankEvent | Lost) -> None:
        if isinstance(event, Ready):
            self._size = event.parameters * VALUE_BYTES
        size = self._size if isinstance(event, Snapshot) else 0
        self._hold(self._deliveries.due(event.rank, size, TO, event.at), event)

    def _hold(self, due: float, message: RankEvent | Lost | RankCommand) -> None:
        heapq.heappush(self._held, (due, next(self._order), message))

    def _arrived(self) -> list[Event]:
        """Hand ranks the orders that have arrived; return the events."""
        events: list[Event] = []
        while self._held and self._held[0][0] <= now():
            message = heapq.heappop(self._held)[2]
            if isinstance(message, RankCommand):
                self._ranks.send(message)
            else:
                events.append(message)
        return events

    def _tick(self, tick: Tick, timeout_s: float) -> list[Event]:
        """Return a tick as often as was asked for: shorter waits have more of them."""
        away_s = tick.away_s if tick.away_s > timeout_s else 0.0
        if tick.at - self._ticked < timeout_s and not away_s:
            return []
        self._ticked = tick.at
        return [Tick(tick.at, away_s)]
