"""An in-process channel: ranks without processes, which the coordinator's thread resumes in turn.

A rank is the loop of `rank.py`. It has a thread because that loop pauses in the middle of things: in a collective, and
where it waits for orders. `resume` lets it run until it pauses, so nothing runs unless the caller waits for it. With
`parallel` all ranks that can go on are resumed at once, and the caller waits for all.

Owns who runs. Knows nothing of what ranks do. A rank has no process that could be killed or stopped, and shares Python's and
NumPy's generators, and the peak of memory, with the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import torch

from ddp.comm.transports.threads import ThreadGroup
from ddp.core.commands import RankCommand
from ddp.core.errors import ReduceFailed
from ddp.core.events import Alive, Event, Reduced, Tick
from ddp.engine.rank import obey
from ddp.process.channel import PeerGone
from ddp.process.clock import now
from ddp.replica.task import Job

KILLING = ("crash", "stall")
"""Faults that are done to a process."""


class ThreadRank:
    """One rank, and its end of the channel."""

    def __init__(self, rank: int, parallel: bool) -> None:
        self.rank = rank
        self.orders: list[Any] = []
        self.events: list[Event] = []
        """Sent, and not yet taken by the coordinator."""
        self.running = self.ended = self.dropped = False
        self._parallel, self._lost = parallel, 0
        self._until: Callable[[], bool] = lambda: True
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def start(self, job: Job) -> None:
        """Make the thread; it begins with the first `resume`."""
        self._thread = threading.Thread(target=self._serve, args=(job,), name=f"rank-{self.rank}", daemon=True)
        self._thread.start()

    def _serve(self, job: Job) -> None:
        self._go.acquire()
        try:
            if not self.dropped:
                torch.set_num_threads(1)
                obey(job, self.rank, self)
        except PeerGone:
            pass
        finally:
            self.ended = True
            if job.threads is not None:
                job.threads.leave(self.rank)
            self._back.release()

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return not self.ended and (self.dropped or self._until())

    def resume(self) -> None:
        """Let it run; to be followed by `wait`."""
        self.running = True
        self._go.release()

    def wait(self) -> None:
        """Return once it has paused, or ended."""
        self._back.acquire()
        self.running = False

    def end(self) -> None:
        """Raise PeerGone where it has paused."""
        self.dropped = True
        if self.running:  # an interrupt came while it was waited for
            self.wait()
        if not self.ended:
            self.resume()
            self.wait()
        self._thread.join()

    def pause(self, until: Callable[[], bool]) -> None:
        """Let others run until the condition holds, in the rank's own thread. Raises PeerGone if the rank was dropped."""
        if self.dropped:
            raise PeerGone
        self._until = until
        generator = None if self._parallel else torch.get_rng_state()
        self._back.release()
        self._go.acquire()
        if generator is not None:
            torch.set_rng_state(generator)
        if self.dropped:
            raise PeerGone

    def send(self, message: Any) -> None:
        """Send one message, or lose it."""
        if self._lost and not isinstance(message, Alive):
            self._lost -= 1
        else:
            self.events.append(message)

    def receive(self, timeout_s: float) -> list[Any]:
        """Take all orders; waits for the first, unless `timeout_s` is 0. Raises PeerGone."""
        if timeout_s and not self.orders:
            self.pause(lambda: bool(self.orders))
        elif not timeout_s and not self._parallel:
            self.pause(lambda: True)
        orders, self.orders = self.orders, []
        return orders

    def lose(self) -> None:
        """Lose the next message; of signs of life, others would follow."""
        self._lost += 1

    def close(self) -> None:
        """Do nothing: the thread ends next."""


class InProcessRanks:
    """All ranks of a run. On leaving the context every thread is gone, whatever happened."""

    def __init__(self, job: Job, parallel: bool = False) -> None:
        if any(fault.kind in KILLING for fault in job.faults):
            raise ValueError(f"ranks without processes cannot have faults of the kinds {', '.join(KILLING)}")
        self._parallel = parallel
        self._ranks = [ThreadRank(rank, parallel) for rank in range(job.world_size)]
        self._job = replace(job, threads=ThreadGroup([rank.pause for rank in self._ranks]))
        self._reduced: SimpleQueue[Reduced | Exception] = SimpleQueue()

    def __enter__(self) -> InProcessRanks:
        self._threads = torch.get_num_threads()
        for rank in self._ranks:
            rank.start(self._job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            rank.end()
        torch.set_num_threads(self._threads)

    def reduced(self, event: Reduced | Exception) -> None:
        """Take in what the reducer's thread has done."""
        self._reduced.put(event)

    def send(self, command: RankCommand) -> None:
        """Give an order."""
        self._ranks[command.rank].orders.append(command)

    def drop(self, rank: int) -> None:
        """End a rank that the run goes on without."""
        self._ranks[rank].end()
        self._ranks[rank].events.clear()

    def events(self, timeout_s: float) -> list[Event]:
        """Resume every rank that can go on, once; return what they sent, by rank. Where none can, wait up to `timeout_s` for
        the reducer, then say that time has passed. Raises ReduceFailed."""
        ready = [rank for rank in self._ranks if rank.ready]
        self._sweep(ready)
        events = [event for rank in self._ranks for event in rank.events]
        for rank in self._ranks:
            rank.events.clear()
        try:
            reduced = self._reduced.get(timeout=0.0 if ready or events else timeout_s)
        except Empty:
            return events if ready or events else [Tick(now(), 0.0)]
        if isinstance(reduced, Exception):
            problem = f"{type(reduced).__name__}: {reduced}"
            raise ReduceFailed(f"averaging the snapshots failed: {problem}") from reduced
        return [*events, reduced]

    def _sweep(self, ranks: list[ThreadRank]) -> None:
        for rank in ranks:
            rank.resume()
            if not self._parallel:
                rank.wait()
        for rank in ranks if self._parallel else ():
            rank.wait()
