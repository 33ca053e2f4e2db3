"""Ranks behind emulated links: delays their messages to and from the coordinator as the links would, in order.

A snapshot has its real size, as has the average that is sent back; other messages have size zero. Packet loss only causes
delay: no message is lost. The coordinator is on rank 0's host."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import cache

from ddp.comm.transports.emulated import sleep_until
from ddp.core.messages.commands import Apply, RankCommand
from ddp.core.messages.events import Alive, Event, Lost, RankEvent, Snapshot, Tick
from ddp.core.network.link_costs import FROM, TO, Deliveries
from ddp.core.network.links import Links
from ddp.engine.ranks import Ranks
from ddp.process.clock import now

POLL_S = 0.002
"""Shorter waits are slept instead of polled: a poll can end milliseconds late."""


class DelayedRanks:
    """Wraps the ranks for the coordinator's loop and delays their messages. `size`: rank -> bytes of its snapshot, asked
    once it has sent one."""

    def __init__(self, ranks: Ranks, links: Links, size: Callable[[int], int]) -> None:
        self._ranks, self._deliveries = ranks, Deliveries(links)
        self._held: list[tuple[float, int, RankEvent | Lost | RankCommand]] = []
        """Messages in flight: a heap of (arrival time, order of sending, message)."""
        self._order = itertools.count()
        self._ticked = now()
        self._size = cache(size)

    def send(self, command: RankCommand) -> None:
        """Send an order; it arrives after the link's delay."""
        size = self._size(command.rank) if isinstance(command, Apply) else 0
        self._hold(self._deliveries.due(command.rank, size, FROM, now()), command)

    def drop(self, rank: int) -> None:
        """End a rank that the run continues without."""
        self._ranks.drop(rank)

    def restart(self, rank: int, life: int) -> None:
        """Restart a rank that was dropped; discard messages in flight to or from its old process."""
        self._held = [entry for entry in self._held if entry[2].rank != rank]
        heapq.heapify(self._held)
        self._deliveries.forget(rank)
        self._ranks.restart(rank, life)

    def events(self, timeout_s: float) -> list[Event]:
        """Return the events that have arrived; wait up to `timeout_s` for the first one; add a `Tick` every `timeout_s`."""
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
        size = self._size(event.rank) if isinstance(event, Snapshot) else 0
        self._hold(self._deliveries.due(event.rank, size, TO, event.at), event)

    def _hold(self, due: float, message: RankEvent | Lost | RankCommand) -> None:
        heapq.heappush(self._held, (due, next(self._order), message))

    def _arrived(self) -> list[Event]:
        """Send the orders that have arrived to their ranks; return the events that have arrived."""
        events: list[Event] = []
        while self._held and self._held[0][0] <= now():
            message = heapq.heappop(self._held)[2]
            if isinstance(message, RankCommand):
                self._ranks.send(message)
            else:
                events.append(message)
        return events

    def _tick(self, tick: Tick, timeout_s: float) -> list[Event]:
        """Return a tick at most every `timeout_s`: the shorter polls in here cause more of them."""
        away_s = tick.away_s if tick.away_s > timeout_s else 0.0
        if tick.at - self._ticked < timeout_s and not away_s:
            return []
        since, self._ticked = self._ticked, tick.at
        return [*self._under_way(since, tick.at), Tick(tick.at, away_s)]

    def _under_way(self, since: float, at: float) -> list[Event]:
        """Return a sign of life of each rank with a message under way that was sent before `since`.

        It may take longer than a deadline."""
        messages = [entry[2] for entry in self._held if not isinstance(entry[2], RankCommand)]
        lost = {message.rank for message in messages if isinstance(message, Lost)}
        return [Alive(at, rank) for rank in sorted({each.rank for each in messages if each.at < since} - lost)]
