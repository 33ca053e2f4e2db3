"""An in-process channel: ranks without processes, which the coordinator's thread resumes in turn.

A rank runs the loop of `rank.py`. It has a thread of its own (`ddp.engine.cooperative_thread`) because that loop pauses
deep inside calls: in a collective, and where it waits for orders. Owns which rank runs; does not know what ranks do. A rank
without a process cannot be killed or stopped."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import torch

from ddp.comm.transports.threads import ThreadGroup
from ddp.core.messages.commands import RankCommand
from ddp.core.messages.events import Alive, Event, Reduced, Tick, Trained
from ddp.engine.cooperative_thread import CooperativeThread, generators
from ddp.engine.rank import obey
from ddp.engine.ranks import averaged
from ddp.process.clock import now
from ddp.replica.task import Job

KILLING = ("crash", "stall")
"""Faults that need a process."""


class ThreadRank(CooperativeThread):
    """One rank in a thread, and its end of the channel."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.orders: list[Any] = []
        self.events: list[Event] = []
        """Events sent and not yet received by the coordinator."""
        self._lost = 0

    def start(self, job: Job) -> None:
        """Create the thread; it begins with the first `resume`."""
        self._group = job.threads
        self.begin(partial(self._obey, job), f"rank-{self.rank}")

    def _obey(self, job: Job) -> None:
        torch.set_num_threads(1)
        obey(job, self.rank, self)

    def leave(self) -> None:
        """Break the collectives in which others wait for this rank."""
        if self._group is not None:
            self._group.leave(self.rank)

    def send(self, message: Any) -> None:
        """Send one message, or lose it."""
        if self._lost and not isinstance(message, (Alive, Trained)):
            self._lost -= 1
        else:
            self.events.append(message)

    def receive(self, timeout_s: float) -> list[Any]:
        """Let the other ranks run, then return all orders; wait for the first one unless `timeout_s` is 0. Raises
        PeerGone."""
        self.pause(lambda: not timeout_s or bool(self.orders))
        orders, self.orders = self.orders, []
        return orders

    def lose(self) -> None:
        """Lose the next message that matters to the run."""
        self._lost += 1

    def close(self) -> None:
        """Do nothing: the thread is about to end."""


class InProcessRanks:
    """All ranks of a run. When the context exits, no thread is left, whatever happened."""

    def __init__(self, job: Job) -> None:
        if any(fault.kind in KILLING for fault in job.faults):
            raise ValueError(f"ranks without processes cannot have faults of the kinds {', '.join(KILLING)}")
        self._ranks = [ThreadRank(rank) for rank in range(job.world_size)]
        self._job = replace(job, threads=ThreadGroup([rank.pause for rank in self._ranks]))
        self._reduced: SimpleQueue[Reduced | Exception] = SimpleQueue()

    def __enter__(self) -> InProcessRanks:
        self._threads, self._restore = torch.get_num_threads(), generators()
        for rank in self._ranks[: self._job.world_size - self._job.absent]:
            rank.start(self._job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            rank.end()
        torch.set_num_threads(self._threads)
        self._restore()

    def reduced(self, event: Reduced | Exception) -> None:
        """Receive the result of the reducer's thread."""
        self._reduced.put(event)

    def send(self, command: RankCommand) -> None:
        """Send an order to its rank."""
        self._ranks[command.rank].orders.append(command)

    def drop(self, rank: int) -> None:
        """End a rank that the run continues without."""
        self._ranks[rank].end()
        self._ranks[rank].events.clear()

    def restart(self, rank: int, life: int) -> None:
        """Restart a rank."""
        new = self._ranks[rank] = ThreadRank(rank)
        group = self._job.threads
        assert group is not None
        group.pauses[rank] = new.pause
        new.start(replace(self._job, life=life))

    def events(self, timeout_s: float) -> list[Event]:
        """Resume once every rank that can continue; return the events they sent, by rank. If none can, wait up to
        `timeout_s` for the reducer, then return a tick. Raises ReduceFailed."""
        ready = [rank for rank in self._ranks if rank.started and rank.ready]
        for rank in ready:
            rank.resume()
        events = [event for rank in self._ranks for event in rank.events]
        for rank in self._ranks:
            rank.events.clear()
        try:
            reduced = self._reduced.get(timeout=0.0 if ready or events else timeout_s)
        except Empty:
            return events if ready or events else [Tick(now(), 0.0)]
        return [*events, averaged(reduced)]
