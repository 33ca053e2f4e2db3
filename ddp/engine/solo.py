"""One rank: the training loop with neither coordinator nor channel, in the calling process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from ddp.checkpoint import checkpoint
from ddp.checkpoint.begin import begun
from ddp.core.errors import Diverged, OutOfResources, RankFailed
from ddp.core.messages.commands import CoordinatorCheckpoint, Evaluate, Publish, Save, Train
from ddp.core.messages.events import Ending, Finished, Progress, RankEvent, Saved
from ddp.core.periodic import checkpoint_schedule
from ddp.core.samples.spans import Batch, Chunk
from ddp.core.state.coordinator_state import Mark
from ddp.core.worker import Step, Worker
from ddp.engine.loop import TrainingLoop
from ddp.engine.phased_loop import loop_of
from ddp.process import termination
from ddp.process.clock import now
from ddp.process.determinism import deterministic
from ddp.replica.task import Job

Emit = Callable[[Any, float], None]
"""Receives every event and command with its time, as it happens."""


def publish(job: Job, order: Publish, emit: Emit) -> None:
    """Publish a checkpoint and record it; if that fails there is no checkpoint, and the run goes on."""
    try:
        checkpoint.publish(job, order)
    except OSError as error:
        emit(Saved(now(), order.members[0], order.index, (), f"{error.strerror or error}: {error.filename}"), now())
    else:
        emit(order, now())


def tidied(job: Job, emit: Emit) -> Emit:
    """Return an `emit` that also removes the files of checkpoints of which some part could not be written."""
    folder, off = job.checkpoint_folder, set[int]()
    if folder is None:
        return emit

    def tidying(record: Any, at: float) -> None:
        emit(record, at)
        if isinstance(record, Saved):
            if record.error:
                off.add(record.index)
            if record.index in off:
                checkpoint.discard(folder, record.index)

    return tidying


@contextmanager
def stepping(job: Job, emit: Emit) -> Iterator[Emit]:
    """Yield an `emit` for a run that is not resumed. After the run, raise Diverged if gradients overflowed in each of its
    steps (in fp16), so that no rank made one."""
    trained, made = False, list[bool]()

    def noting(record: Any, at: float) -> None:
        nonlocal trained
        emit(record, at)
        trained = trained or isinstance(record, Progress)
        if isinstance(record, Finished):
            made.append(record.work is None or bool(record.work.norms))

    yield noting if job.step.precision == "fp16" and job.resume is None else emit
    if trained and made and not any(made):
        raise Diverged(
            "no step was made, as the gradients of each overflowed in fp16: if the loss is finite, make more steps (each "
            "halves its factor), or take precision=bf16"
        )


def run(job: Job, emit: Emit) -> None:
    """Train `job` in this process. Raises RankFailed, Diverged, InvalidCheckpoint, OutOfResources; lets KeyboardInterrupt
    pass."""
    emit = tidied(job, emit)

    def send(event: RankEvent) -> None:
        emit(event, event.at)
        if isinstance(event, Progress) and event.loss_sum is None:
            raise Diverged(f"the training loss is not finite in epoch {event.epoch}; lower the learning rate")

    with begun(job) as job, deterministic(job.step.deterministic), stepping(job, emit) as emit:
        try:
            _train(job, send, emit)
        except (Diverged, OutOfResources, checkpoint.InvalidCheckpoint):
            raise
        except (Exception, SystemExit) as error:  # a user's step may call sys.exit()
            raise RankFailed(0, f"{type(error).__name__}: {error}", traceback.format_exc()) from error


def _train(job: Job, send: Callable[[RankEvent], None], emit: Emit) -> None:
    source = checkpoint.resume(job)
    with closing(loop_of(job, 0, send)) as loop:
        loop.restore()
        loop.ready("none")
        samples = loop.replica.samples
        saved = source.coordinator if source is not None else CoordinatorCheckpoint(samples, 0, (), 0, 0, None, None)
        _epochs(job, loop, _Saver(job, loop, emit, saved), saved.samples)
        loop.finish()


def _epochs(job: Job, loop: TrainingLoop, saver: _Saver, seen: int) -> None:
    """Train everything after the first `seen` samples."""
    samples = loop.replica.samples
    loop.expect(_ahead(job, samples, seen))
    while seen < job.epochs * samples:
        epoch, start = divmod(seen, samples)
        stop = min(samples, start + (saver.left(seen) or -(-samples // job.batch_size)) * job.batch_size)
        chunk = Chunk(epoch, start, stop, job.batch_size)
        stop = min(stop, start + _run(loop, chunk, seen) * job.batch_size)
        seen += stop - start
        if stop == samples:
            loop.evaluate(Evaluate(0, epoch, part=0, parts=1, in_turn=True, reason="solo"))
        soon = termination.announced()
        saver.at(seen, soon)
        if soon and seen < job.epochs * samples:
            raise KeyboardInterrupt


def _ahead(job: Job, samples: int, seen: int) -> Iterator[Batch]:
    """Yield the batches after the first `seen` samples, for prefetching."""
    for epoch in range(seen // samples, job.epochs):
        chunk = Chunk(epoch, max(seen - epoch * samples, 0), samples, job.batch_size)
        yield from map(chunk.at, range(chunk.steps))


def _run(loop: TrainingLoop, chunk: Chunk, seen: int) -> int:
    """Train a chunk, or a part of it if termination is announced; return the steps done."""
    worker, steps = Worker().receive(Train(0, chunk, seen=seen, pace=1.0, reason="solo")), 0
    while worker.lane and not termination.announced():
        worker, step = worker.act()
        assert isinstance(step, Step)
        loop.train(step)
        steps += 1
    return steps


class _Saver:
    """Saves the checkpoints of a run on one rank."""

    def __init__(self, job: Job, loop: TrainingLoop, emit: Emit, saved: CoordinatorCheckpoint) -> None:
        self._job, self._loop, self._emit = job, loop, emit
        self._samples, self._index = saved.epoch_samples, saved.saves
        self._last = self._mark(saved.samples)

    def _mark(self, seen: int) -> Mark:
        epochs, rest = divmod(seen, self._samples)
        batch = self._job.batch_size
        return Mark(now(), epochs, epochs * -(-self._samples // batch) + -(-rest // batch))

    def left(self, seen: int) -> int | None:
        """Return the steps to the next checkpoint; None: none is due before the end of the epoch."""
        settings = self._job.checkpoints
        return settings.left(self._mark(seen).averages - self._last.averages) if settings is not None else None

    def at(self, seen: int, soon: bool) -> None:
        """Save a checkpoint if it is due, or if the run ends `soon`."""
        mark = self._mark(seen)
        if soon:
            self._emit(Ending(now()), now())
        reason = checkpoint_schedule.due(self._job.checkpoints, mark, self._last, self._job.epochs, soon)
        if not reason:
            return
        ledgers = checkpoint_schedule.begun(self._samples, seen)
        self._last, index, self._index = mark, self._index, self._index + 1
        state = CoordinatorCheckpoint(self._samples, mark.epochs + len(ledgers), ledgers, 0, self._index, None, None)
        saved = self._loop.save(Save(0, index, model=True, in_turn=True, reason=reason))
        if not saved.error:
            publish(self._job, Publish(index, (0,), saved.files, state, reason), self._emit)
