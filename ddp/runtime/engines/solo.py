"""One rank: the training loop with neither coordinator nor channel, in the calling process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from ddp.core.commands import Evaluate, Train
from ddp.core.errors import Diverged, RankFailed
from ddp.core.events import Progress, RankEvent
from ddp.core.spans import Chunk
from ddp.core.worker import Step, Worker
from ddp.runtime.loop import Loop
from ddp.runtime.task import Job

Emit = Callable[[Any, float], None]
"""Receives every event and command with its time, as it happens."""


def run(job: Job, emit: Emit) -> None:
    """Train `job` in this process. Raises RankFailed, Diverged; KeyboardInterrupt passes through."""

    def send(event: RankEvent) -> None:
        emit(event, event.at)
        if isinstance(event, Progress) and event.loss_sum is None:
            raise Diverged(f"the training loss is not finite in epoch {event.epoch}; lower train.lr")

    try:
        _train(job, send)
    except Diverged:
        raise
    except Exception as error:
        raise RankFailed(0, f"{type(error).__name__}: {error}", traceback.format_exc()) from error


def _train(job: Job, send: Callable[[RankEvent], None]) -> None:
    loop = Loop(job, 0, send)
    loop.ready("none")
    samples = loop.replica.samples
    for epoch in range(job.epochs):
        chunk = Chunk(epoch, 0, samples, job.batch_size)
        worker = Worker().receive(Train(0, chunk, seen=epoch * samples, pace=1.0, reason="solo"))
        while worker.lane:
            worker, step = worker.act()
            assert isinstance(step, Step)
            loop.train(step)
        loop.evaluate(Evaluate(0, epoch, part=0, parts=1, in_turn=True, reason="solo"))
    loop.finish()
