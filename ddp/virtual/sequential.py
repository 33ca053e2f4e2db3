"""The ranks of a run, one after the other in one thread. They have the bits of real processes, because they run the same
code.

Each rank is the loop of `ddp.engine.rank` on its backend. In a collective, each rank runs in its own thread, and these
threads take turns. Knows nothing of time: the ranks' own measurements are discarded.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from ddp.backends import BACKENDS, SyncKind
from ddp.backends.base import Reducer, reducing
from ddp.comm.transports.threads import ThreadGroup
from ddp.core.errors import RankFailed
from ddp.core.messages.commands import Reduce
from ddp.core.messages.events import RankEvent, Reduced
from ddp.core.worker import Action, Step
from ddp.engine.cooperative_thread import CooperativeThread, generators
from ddp.engine.own_tasks import OwnTasks
from ddp.engine.rank import RankLoop
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.replica import Replica
from ddp.replica.task import Job


class _NoMeter(Meter):
    """A meter that measures nothing: the time of this process says nothing about the ranks."""

    def add(self, kind: str, since: float, seq: int = 0, size: int = 0) -> float:
        """Return the present time."""
        return now()

    def add_hidden(self, since: float, until: float, seq: int, size: int) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


class _Outbox:
    """A rank's end of a channel that stores the sent messages until they are taken."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        """Store a message."""
        self.sent.append(message)

    def receive(self, timeout_s: float) -> list[Any]:
        """Return nothing: actions are passed by calls."""
        return []

    def lose(self) -> None:
        """Do nothing: messages cannot be lost here."""

    def close(self) -> None:
        """Do nothing."""

    def take(self) -> list[Any]:
        """Return the stored messages, and clear them."""
        sent, self.sent = self.sent, []
        return sent


class SequentialRanks:
    """All ranks of a job, as `ddp.sim.work.RankWork`. A context manager. Raises RankFailed for any error of a rank."""

    def __init__(self, job: Job) -> None:
        self._threads: dict[int, CooperativeThread] = {}
        self._group = ThreadGroup([partial(self._pause, rank) for rank in range(job.world_size)])
        plain = replace(job, links=None, speeds=(), faults=(), profile_steps=0)
        self._job = replace(plain, threads=self._group, task=OwnTasks(job))
        self._outboxes = [_Outbox() for _ in range(job.world_size)]
        self._ranks: list[RankLoop] = []
        self._draws: list[Callable[[], None]] = []
        """For each rank, a function that restores its state of the random generators."""
        self._in_step = SyncKind.SNAPSHOT not in BACKENDS[job.backend].sync and job.policy.every_step
        self._exits, self._reduced = ExitStack(), list[Reduced | Exception]()

    def __enter__(self) -> SequentialRanks:
        self._exits.callback(generators())
        self._reducer: Reducer | None = self._exits.enter_context(reducing(self._job, self._reduced.append))
        for rank, outbox in enumerate(self._outboxes):
            self._guarded(rank, partial(self._make, rank, outbox))
            self._draws.append(generators())
        return self

    def __exit__(self, *exception: object) -> None:
        for thread in self._threads.values():
            thread.end()
        for each in self._ranks:
            each.loop.close()
        self._exits.close()

    def _make(self, rank: int, outbox: _Outbox) -> None:
        made = RankLoop(self._job, rank, outbox, _NoMeter)
        made.loop.report_s = math.inf  # report only when all granted steps are done
        if self._in_step:
            made.share_steps()
        self._ranks.append(made)

    @property
    def replica(self) -> Replica:
        """Return a replica."""
        return self._ranks[0].loop.replica

    def ready(self, rank: int) -> Sequence[RankEvent]:
        """Return the events of a rank that starts."""
        return self._do(rank, self._ranks[rank].come)

    def begin(self, rank: int, step: Step) -> None:
        """Do nothing: a step is computed when it ends, with the same result."""

    def act(self, rank: int, action: Action) -> Sequence[RankEvent]:
        """Have one rank carry out an action, and return its events."""
        return self._do(rank, partial(self._ranks[rank].act, action))

    def report(self, rank: int) -> Sequence[RankEvent]:
        """Have a rank report its trained steps."""
        return self._do(rank, self._ranks[rank].loop.report)

    def together(self, actions: Mapping[int, Action]) -> Mapping[int, Sequence[RankEvent]]:
        """Have several ranks each carry out an action, in threads that take turns. Return their events."""
        failed: list[BaseException] = []
        for rank, action in actions.items():
            thread = self._threads[rank] = CooperativeThread()
            thread.begin(partial(self._in_thread, rank, action, failed), f"rank-{rank}")
        while ready := [thread for thread in self._threads.values() if thread.ready]:
            for thread in ready:
                thread.resume()
            if failed:
                raise failed[0]
        assert all(thread.ended for thread in self._threads.values()), "ranks wait for each other"
        self._threads.clear()
        return {rank: self._outboxes[rank].take() for rank in actions}

    def reduce(self, order: Reduce) -> int:
        """Average snapshots, and wait for the result. Return the bytes moved."""
        assert self._reducer is not None
        self._reducer.submit(order)
        self._reducer.wait()
        reduced = self._reduced.pop()
        if isinstance(reduced, Exception):
            raise reduced
        return reduced.bytes

    def _pause(self, rank: int, until: Callable[[], bool]) -> None:
        self._threads[rank].pause(until)

    def _in_thread(self, rank: int, action: Action, failed: list[BaseException]) -> None:
        try:
            self._guarded(rank, partial(self._drawing, rank, partial(self._ranks[rank].act, action)))
        except RankFailed as error:
            failed.append(error)

    def _do(self, rank: int, act: Callable[[], None]) -> Sequence[RankEvent]:
        self._guarded(rank, partial(self._drawing, rank, act))
        return self._outboxes[rank].take()

    def _drawing(self, rank: int, act: Callable[[], None]) -> None:
        self._draws[rank]()
        act()
        self._draws[rank] = generators()

    def _guarded(self, rank: int, act: Callable[[], None]) -> None:
        try:
            act()
        except (Exception, SystemExit) as error:
            raise RankFailed(rank, f"{type(error).__name__}: {error}", traceback.format_exc()) from error
