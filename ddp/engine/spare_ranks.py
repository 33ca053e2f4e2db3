"""Spare processes for ranks that will be lost: each has torch, the task and the data, and waits to be told which rank it is.

Owns their start and their order. Which rank takes one, and when, the coordinator decides.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from ddp.core.errors import OutOfResources
from ddp.engine.forked_rank import ForkedRank
from ddp.engine.rank import main
from ddp.process.orphans import bind_rank
from ddp.process.resource_errors import enough
from ddp.replica.task import Job, Source, Task

LONGEST_WORD = 64
"""Bytes of the message that says which rank it is."""


@dataclass
class PreparedTask:
    """Makes the task in a rank whose data are there already."""

    task: Task
    train: Source
    test: Source

    def __call__(self) -> Task:
        """Return the task."""
        return replace(self.task, train_data=lambda: self.train, eval_data=lambda: self.test)


def wait(job: Job, connection: Connection) -> None:
    """Be a spare in this process, made for it; then the rank that the first message names."""
    bind_rank()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        task = job.task()
        prepared = PreparedTask(task, task.train_data(), task.eval_data())
        rank, life = map(int, connection.recv_bytes(LONGEST_WORD).split())
    except EOFError:  # nobody needs it
        return
    main(replace(job, task=prepared, life=life), rank, connection)


class ForkedSpare(ForkedRank):
    """A spare, forked from the fork server of this process."""

    def __init__(self, job: Job) -> None:
        self._prepare(job, wait, "spare", job)

    def become(self, rank: int, life: int) -> bool:
        """Tell it which rank it is; return whether it lives."""
        try:
            self._connection.send_bytes(f"{rank} {life}".encode())
        except OSError:
            return False
        return bool(self._process.is_alive())

    @property
    def connection(self) -> Connection:
        """Return this end of its channel."""
        return self._connection


class SpareProcesses:
    """Spares that were started and not taken."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._waiting: list[ForkedSpare] = []

    def start(self) -> None:
        """Start as many as the job wants. One that cannot be started is none: a rank is forked anew then."""
        for _ in range(self._job.spares):
            try:
                with enough("no spare process"):
                    spare = ForkedSpare(self._job)
                    spare.start()
            except OutOfResources:
                return
            self._waiting.append(spare)

    def take(self, rank: int, life: int) -> ForkedSpare | None:
        """Return a spare that becomes `rank`; None: there is none that lives."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if spare.become(rank, life):
                return spare
            spare.kill()
            spare.connection.close()
        return None

    def end(self) -> None:
        """End those that wait."""
        for spare in self._waiting:
            spare.kill()
            spare.wait(1.0)
            spare.connection.close()
        self._waiting.clear()
