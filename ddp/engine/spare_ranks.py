"""Spare processes for ranks that will be lost: each has imported torch and built the task and its data, and waits for a
rank.

Owns their start and their order. The coordinator decides which rank takes one, and when."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

import torch

from ddp.core.errors import OutOfResources
from ddp.data.seeded import seeded
from ddp.engine.forked_rank import ForkedRank
from ddp.engine.once import Once
from ddp.engine.rank import main
from ddp.permutation import derive
from ddp.process.orphans import bind_rank
from ddp.process.resource_errors import enough
from ddp.replica.task import Job, Task

LONGEST_WORD = 64
"""Most bytes of the message that says which rank a spare becomes."""


def prepared(job: Job) -> Callable[[], Task]:
    """Make the task and its data with the random numbers of a `Replica`, which draws in this order; return a function that
    gives them to one."""
    torch.set_num_threads(1)
    make = Once(partial(_loading_once, job))
    task = seeded(derive(job.seed, "init"), make)
    task.optimizer(list(task.model().parameters()))
    task.train_data()
    task.eval_data()
    return make


def _loading_once(job: Job) -> Task:
    task = job.task()
    return replace(task, train_data=Once(task.train_data), eval_data=Once(task.eval_data))


def wait(job: Job, connection: Connection) -> None:
    """Run a spare in this process, which was forked for it; then become the rank that the first message names."""
    bind_rank()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        task = prepared(job)
        rank, life = map(int, connection.recv_bytes(LONGEST_WORD).split())
    except EOFError:  # no spare was needed
        return
    main(replace(job, task=task, life=life), rank, connection)


class ForkedSpare(ForkedRank):
    """A spare, forked from the fork server of this process."""

    def __init__(self, job: Job) -> None:
        self._prepare(job, wait, "spare", job)

    def become(self, rank: int, life: int) -> bool:
        """Tell the spare which rank it is; return whether it is alive."""
        try:
            self._connection.send_bytes(f"{rank} {life}".encode())
        except OSError:
            return False
        return bool(self._process.is_alive())

    @property
    def connection(self) -> Connection:
        """The parent's end of the channel."""
        return self._connection


class SpareProcesses:
    """Spares that are not in use yet."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._waiting: list[ForkedSpare] = []

    def start(self) -> None:
        """Start the spares of the job. If one cannot be started, a rank will be forked instead."""
        for _ in range(self._job.spares):
            try:
                with enough("no spare process"):
                    spare = ForkedSpare(self._job)
                    spare.start()
            except OutOfResources:
                return
            self._waiting.append(spare)

    def take(self, rank: int, life: int) -> ForkedSpare | None:
        """Return a spare that is alive and becomes `rank`; None if there is none."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if spare.become(rank, life):
                return spare
            spare.kill()
            spare.connection.close()
        return None

    def end(self) -> None:
        """End the spares that still wait."""
        for spare in self._waiting:
            spare.kill()
            spare.wait(1.0)
            spare.connection.close()
        self._waiting.clear()
