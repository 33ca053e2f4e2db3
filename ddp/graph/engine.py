"""`graph`: one process, a replica of the model for each device, in threads. Gradients and buffers meet in its memory.

With `sync` every global batch is cut into shards by the replicas' throughput; with `cadence` each replica accumulates
gradients over as many batches as El Che gives it, and there is one step for the window. Reduction is in the order of ranks.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from ddp.checkpoint import checkpoint
from ddp.core import saving
from ddp.core.commands import CoordinatorCheckpoint, Evaluate, Publish, Save
from ddp.core.coordinator_state import Mark
from ddp.core.errors import Diverged, RankFailed
from ddp.core.events import Merged, Progress
from ddp.core.spans import Batch, Span, union
from ddp.core.worker import Step
from ddp.core.world import World
from ddp.engine import solo
from ddp.engine.loop import TrainingLoop
from ddp.engine.solo import Emit
from ddp.gradients.exchange import Exchange
from ddp.graph.accumulate import Accumulating
from ddp.graph.serialized_rng import SerializedRng
from ddp.graph.windows import Windows
from ddp.graph.worker_threads import ReplicaFailed, WorkerThreads
from ddp.process.clock import now
from ddp.replica.norms import least_samples
from ddp.replica.task import Job

T = TypeVar("T")


def run(job: Job, emit: Emit, parallel: bool = True) -> None:
    """Train `job` in this process. Raises RankFailed, Diverged; KeyboardInterrupt passes through, no thread is left.

    `parallel=False`: replicas run one after the other, to the same bits.
    """
    if job.world_size == 1:
        solo.run(job, emit)
        return
    job = checkpoint.begin(job)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    team = WorkerThreads(job.world_size, parallel)
    try:
        with closing(_Engine(job, emit, team)) as engine:
            engine.train()
    except ReplicaFailed as failure:
        error = failure.error
        text = "".join(traceback.format_exception(error))
        raise RankFailed(failure.rank, f"{type(error).__name__}: {error}", text) from error
    finally:
        team.close()
        torch.set_num_threads(threads)


class _Engine:
    """The loop around the schedule: windows of work for all replicas, until every epoch is trained."""

    def __init__(self, job: Job, emit: Emit, team: WorkerThreads) -> None:
        self._job, self._emit, self._team = job, emit, team
        self._said: list[Any] = []
        """Events of the replicas' threads, until this one hands them on."""
        task = job.task()
        shared = replace(job, task=lambda: task)  # data is read once for all
        self._loops = [self._loop(shared, rank) for rank in range(job.world_size)]
        self._replicas = [self._replica(loop) for loop in self._loops]
        exchange = self._exchange = Exchange([replica.state for replica in self._replicas])
        self._turns = SerializedRng([loop.device for loop in self._loops])
        for replica, gradients in zip(self._replicas, exchange.gradients, strict=True):
            replica.gradients, replica.turns = gradients, self._turns
        self._samples = self._replicas[0].samples
        self._merged: list[list[Span]] = [[] for _ in self._loops]
        self._seq = 0
        self._free: float | None = None
        """Since when the replicas wait for their next window; None: they did something else meanwhile."""
        held = checkpoint.resume(job)
        self._books = held.books if held is not None else CoordinatorCheckpoint(self._samples, 0, (), 0, 0, None, None)
        if self._books.epoch_samples != self._samples:
            raise ValueError(
                f"the checkpoint is of {self._books.epoch_samples} training samples, there are {self._samples} now"
            )
        self._windows = self._schedule()
        self._saves, self._saved = self._books.saves, self._mark(self._books.samples)

    def _loop(self, job: Job, rank: int) -> TrainingLoop:
        loop = self._on(rank, lambda: TrainingLoop(job, rank, self._said.append, Accumulating))
        self._on(rank, loop.restore)
        return loop

    def _replica(self, loop: TrainingLoop) -> Accumulating:
        assert isinstance(loop.replica, Accumulating)
        return loop.replica

    def _on(self, rank: int, work: Callable[[], T]) -> T:
        """Here and now, but as if the replica's thread had done it."""
        try:
            return work()
        except Exception as error:
            raise ReplicaFailed(rank, error) from error

    def _schedule(self) -> Windows:
        job, books = self._job, self._books
        world = World(job.world_size, self._samples, job.batch_size, job.epochs, blocking=True, in_step=True)
        windows = Windows.start(job.policy, world, None, least_samples(self._replicas[0].model))
        if books.plan is not None:
            windows = replace(windows, state=books.policy_state, plan=books.plan, round=books.rounds)
        return windows

    def train(self) -> None:
        """All epochs that are left."""
        for loop in self._loops:
            loop.ready("memory")
        self._hand_on()
        self._emit(self._windows.plan, now())
        seen = self._books.samples
        begun = -1
        while seen < self._job.epochs * self._samples:
            epoch, position = divmod(seen, self._samples)
            if epoch != begun:
                begun = epoch
                self._begin(epoch, seen)
            seen += self._window(epoch, position, seen)
            if seen % self._samples == 0:
                self._close(epoch)
            self._save_if_due(seen)
        self._everywhere([self._finish(loop) for loop in self._loops])

    def close(self) -> None:
        """Nothing runs in the background any more."""
        for loop in self._loops:
            loop.close()

    def _begin(self, epoch: int, seen: int) -> None:
        """Call the user back on every replica, one after the other: they share the generator that a callback is seeded in,
        and what it draws there is not the model's."""
        for rank, loop in enumerate(self._loops):
            self._on(rank, partial(loop.begin, epoch, seen))

    def _window(self, epoch: int, position: int, seen: int) -> int:
        """Train until the replicas have met once; samples trained."""
        work = self._windows.work(position, self._samples)
        sizes = tuple(sum(stop - start for start, stop in mine) for mine in work)
        total = sum(sizes)
        last = position + total == self._samples
        self._turns.begin()
        tasks = [partial(self._train, rank, epoch, mine, total, seen, last) for rank, mine in enumerate(work)]
        arrived = self._everywhere(tasks)
        self._turns.end()
        began = now()
        self._exchange.reduce()
        self._seq += 1
        for loop, since in zip(self._loops, arrived, strict=True):
            loop.meter.add("exchange", since, self._seq, self._exchange.bytes)
            loop.version += 1
        self._free = now()
        for mine, spans in zip(self._merged, work, strict=True):
            mine += spans
        busy = tuple(replica.busy_s for replica in self._replicas)
        at = now()
        lr = max(replica.lr for replica in self._replicas)
        self._windows, records = self._windows.met(at, sizes, tuple(map(len, work)), busy, at - began, lr, seen + total)
        for record in records:
            self._emit(record, at)
        return total

    def _train(self, rank: int, epoch: int, spans: tuple[Span, ...], total: int, seen: int, last: bool) -> float:
        """A replica's part of a window; when it was there."""
        loop, replica = self._loops[rank], self._replicas[rank]
        loop.pause()
        if self._free is not None:
            loop.meter.add("wait", self._free)
        replica.begin(sum(stop - start for start, stop in spans))
        batches = [Batch(epoch, start, stop, stop - start) for start, stop in spans]
        loop.expect(batches)
        for batch in batches:
            loop.train(Step(batch, seen, last and batch is batches[-1]))
        replica.spend()  # a replica without a batch has not come to it yet
        return replica.bring(total, seen)

    def _everywhere(self, work: Sequence[Callable[[], T]]) -> list[T]:
        try:
            return self._team.run(work)
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        said, self._said[:] = self._said[:], []
        for event in said:
            self._emit(event, event.at)
            if isinstance(event, Progress) and event.loss_sum is None:
                raise Diverged(f"the training loss is not finite in epoch {event.epoch}; lower train.lr")

    def _close(self, epoch: int) -> None:
        """Every sample of the epoch is in the model: say so, and evaluate it."""
        self._free = None
        self._merge(epoch)
        parts = len(self._loops)
        orders = [Evaluate(r, epoch, r, parts, in_turn=True, reason=f"epoch {epoch} is complete") for r in range(parts)]
        for order in orders:
            self._emit(order, now())
        self._everywhere([partial(self._evaluate, order) for order in orders])

    def _merge(self, epoch: int) -> None:
        for rank, spans in enumerate(self._merged):
            if spans:
                self._emit(Merged(now(), rank, epoch, union((), tuple(spans))), now())
        self._merged = [[] for _ in self._loops]

    def _evaluate(self, order: Evaluate) -> None:
        self._replicas[order.rank].spend()
        self._loops[order.rank].evaluate(order)

    def _finish(self, loop: TrainingLoop) -> Callable[[], None]:
        def work() -> None:
            self._replicas[loop.rank].spend()
            loop.finish()

        return work

    def _mark(self, seen: int) -> Mark:
        return Mark(now(), seen // self._samples, self._seq)

    def _save_if_due(self, seen: int) -> None:
        mark = self._mark(seen)
        reason = saving.due(self._job.checkpoints, mark, self._saved, self._job.epochs)
        if not reason:
            return
        ledgers, self._free = saving.begun(self._samples, seen), None
        if ledgers:
            self._merge(mark.epochs)
        self._saved, index, self._saves = mark, self._saves, self._saves + 1
        orders = [Save(rank, index, rank == 0, in_turn=True, reason=reason) for rank in range(len(self._loops))]
        saved = self._everywhere([partial(self._save, order) for order in orders])
        if any(one.error for one in saved):
            return
        windows, begun = self._windows, mark.epochs + len(ledgers)
        books = CoordinatorCheckpoint(
            self._samples, begun, ledgers, windows.round, self._saves, windows.state, windows.plan
        )
        files = tuple(file for one in saved for file in one.files)
        members = tuple(range(len(self._loops)))
        solo.publish(self._job, Publish(index, members, files, books, reason), self._emit)

    def _save(self, order: Save) -> Any:
        self._replicas[order.rank].spend()
        return self._loops[order.rank].save(order)
