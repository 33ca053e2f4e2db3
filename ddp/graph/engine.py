"""`graph`: replicas run in threads of one process. It reduces their gradients and buffers in memory.

With `sync`, every global batch is cut into shards by the replicas' throughput. With `cadence`, each replica accumulates
gradients over as many batches as El Che plans for it, and a window makes one step. Gradients are summed in the order of
ranks. Owns the loop over windows. Must not know how a replica trains a batch, nor who plans a window.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch

from ddp.checkpoint import checkpoint
from ddp.checkpoint.begin import begun
from ddp.core.errors import Diverged, RankFailed
from ddp.core.messages.commands import CoordinatorCheckpoint, Evaluate, Publish, Save
from ddp.core.messages.events import Ending, Merged, Progress
from ddp.core.periodic import checkpoint_schedule
from ddp.core.samples.spans import Batch, Span, union
from ddp.core.settings.world import World
from ddp.core.state.coordinator_state import Mark
from ddp.core.worker import Step
from ddp.engine import solo
from ddp.engine.loop import TrainingLoop
from ddp.engine.own_tasks import OwnTasks
from ddp.engine.phased_loop import loop_of
from ddp.engine.solo import Emit
from ddp.gradients.exchange import Exchange
from ddp.graph.accumulate import Accumulating
from ddp.graph.serialized_rng import SerializedRng
from ddp.graph.windows import Windows
from ddp.graph.worker_threads import ReplicaFailed, WorkerThreads
from ddp.process import termination
from ddp.process.clock import now
from ddp.process.determinism import deterministic
from ddp.replica.norms import least_samples
from ddp.replica.task import Job

T = TypeVar("T")


def run(job: Job, emit: Emit, parallel: bool = True) -> None:
    """Train `job` in this process. Raises RankFailed, Diverged. KeyboardInterrupt passes through; all threads are ended.
    `parallel=False`: replicas run one after the other, with bit-identical results.
    """
    if job.world_size == 1:
        solo.run(job, emit)
        return
    emit, threads = solo.tidied(job, emit), torch.get_num_threads()
    torch.set_num_threads(1)
    team = WorkerThreads(job.world_size, parallel)
    try:
        with (
            begun(job) as own,
            deterministic(job.step.deterministic),
            solo.stepping(job, emit) as emit,
            closing(_Engine(own, emit, team)) as engine,
        ):
            engine.train()
    except ReplicaFailed as failure:
        error = failure.error
        text = "".join(traceback.format_exception(error))
        raise RankFailed(failure.rank, f"{type(error).__name__}: {error}", text) from error
    finally:
        team.close()
        torch.set_num_threads(threads)


class _Engine:
    """Runs windows of work on all replicas until every epoch is trained."""

    def __init__(self, job: Job, emit: Emit, team: WorkerThreads) -> None:
        self._job, self._emit, self._team = job, emit, team
        self._in_turn = WorkerThreads(job.world_size, parallel=False)
        self._events: list[Any] = []
        """Events from the replicas' threads, until this thread emits them."""
        own = replace(job, task=OwnTasks(job, shown=True))
        self._loops = self._in_turn.run(
            [partial(loop_of, own, rank, self._events.append, Accumulating) for rank in range(job.world_size)]
        )
        self._replicas = [cast(Accumulating, loop.replica) for loop in self._loops]
        states = [replica.state for replica in self._replicas]
        single = job.policy.every_step and job.step.accumulate == 1  # otherwise gradients are put aside between passes
        exchange = self._exchange = Exchange(states, eager=single)
        self._turns = SerializedRng([loop.device for loop in self._loops])
        for replica, gradients in zip(self._replicas, exchange.gradients, strict=True):
            replica.gradients, replica.turns = gradients, self._turns
        # After the exchange is made: what is restored as frozen takes no hooks.
        self._in_turn.run([loop.restore for loop in self._loops])
        self._samples = self._replicas[0].samples
        self._merged: list[list[Span]] = [[] for _ in self._loops]
        self._seq = 0
        self._free: float | None = None
        """Time since which the replicas wait for their next window; None: they did something else meanwhile."""
        source = checkpoint.resume(job)
        saved = (
            source.coordinator if source is not None else CoordinatorCheckpoint(self._samples, 0, (), 0, 0, None, None)
        )
        if saved.epoch_samples != self._samples:
            raise ValueError(
                f"the checkpoint is of {saved.epoch_samples} training samples, there are {self._samples} now"
            )
        self._seen, self._saves = saved.samples, saved.saves
        self._windows = self._schedule(saved)
        self._saved = self._mark()

    def _schedule(self, saved: CoordinatorCheckpoint) -> Windows:
        job = self._job
        world = World(job.world_size, self._samples, job.batch_size, job.epochs, blocking=True, in_step=True)
        windows = Windows.start(job.policy, world, None, least_samples(self._replicas[0].model))
        if saved.plan is None:
            return windows
        return replace(windows, state=saved.policy_state, plan=saved.plan, round=saved.rounds)

    def train(self) -> None:
        """Train the remaining epochs."""
        for loop in self._loops:
            loop.ready("memory")
        self._hand_on()
        self._emit(self._windows.plan, now())
        begun = -1
        while self._seen < self._job.epochs * self._samples:
            epoch, position = divmod(self._seen, self._samples)
            for each in range(begun + 1, epoch + 1):
                # One after the other, because epoch callbacks of CPU replicas share torch's default generator. Their
                # draws do not affect the model's. Epoch by epoch, as what they change may be common to all replicas.
                self._in_turn.run([partial(loop.begin, each, self._seen) for loop in self._loops])
            begun = epoch
            self._seen += self._window(epoch, position)
            if self._seen % self._samples == 0:
                self._evaluate(epoch)
            soon = termination.announced()
            self._save_if_due(soon)
            if soon and self._seen < self._job.epochs * self._samples:
                raise KeyboardInterrupt
        self._everywhere(lambda loop: loop.finish())

    def close(self) -> None:
        """Close the training loops and their background work."""
        for loop in self._loops:
            loop.close()

    def _window(self, epoch: int, position: int) -> int:
        """Train one window, to the end of its reduction. Return the number of samples trained."""
        work = self._windows.work(position, self._samples)
        sizes = tuple(sum(stop - start for start, stop in spans) for spans in work)
        total = sum(sizes)
        last = position + total == self._samples
        kept = self._keep(Batch(epoch, position, position + total, total), work)
        self._turns.begin()
        arrived = self._run([partial(self._train, rank, epoch, spans, total, last) for rank, spans in enumerate(work)])
        self._turns.end()
        began = now()
        self._exchange.reduce()
        self._seq += 1
        for loop, since in zip(self._loops, arrived, strict=True):
            loop.meter.add("exchange", since, self._seq, self._exchange.bytes)
            loop.version += 1
        for loop in kept:
            cast(Accumulating, loop.replica).update()
            loop.keep_end()
            loop.report()
        self._free = at = now()
        for merged, spans in zip(self._merged, work, strict=True):
            merged += spans
        busy = tuple(replica.busy_s for replica in self._replicas)
        lr, seen = max(replica.lr for replica in self._replicas), self._seen + total
        self._windows, records = self._windows.close(
            at, sizes, tuple(map(len, work)), busy, at - began, lr=lr, seen=seen
        )
        for record in records:
            self._emit(record, at)
        return total

    def _keep(self, window: Batch, work: Sequence[Sequence[Span]]) -> Sequence[TrainingLoop]:
        """Record the state before a window if the window is drawn for the audit. Return the loops that must record the
        state after it."""
        keeper = self._loops[0].keeper
        if keeper is not None and keeper.watch.awaits:
            self._replicas[0].update()  # no update is due: the model was just evaluated or saved
        if keeper is None or not keeper.due(window, self._seen, self._seq, 0):
            return ()
        for loop, spans in zip(self._loops, work, strict=True):
            cast(Accumulating, loop.replica).update()
            loop.keep(window, self._seen, spans)
        return self._loops

    def _train(self, rank: int, epoch: int, spans: tuple[Span, ...], total: int, last: bool) -> float:
        """Train one replica's part of a window of `total` samples. Return the time at the end."""
        loop, replica, seen = self._loops[rank], self._replicas[rank], self._seen
        loop.pause()
        if self._free is not None:
            loop.meter.add("wait", self._free)
        batches = [self._batch(epoch, start, stop, total) for start, stop in spans]
        replica.begin(sum(batch.samples for batch in batches))
        loop.expect(batches)
        for batch in batches:
            loop.train(Step(batch, seen, last and batch is batches[-1]))
        replica.update()  # a replica without a batch has not applied the last window yet
        return replica.contribute(total, seen)

    def _batch(self, epoch: int, start: int, stop: int, total: int) -> Batch:
        """Return a batch of a window of `total` samples, with the total and ranks by which it is cut into micro-batches:
        those of the window if replicas share it, as in the other modes. A share above the even one is cut by itself, so
        that no micro-batch is too large."""
        size = self._job.world_size
        if self._windows.windowed or stop - start > -(-total // size):
            return Batch(epoch, start, stop, stop - start)
        return Batch(epoch, start, stop, total, ranks=size)

    def _run(self, work: Sequence[Callable[[], T]]) -> list[T]:
        try:
            return self._team.run(work)
        finally:
            self._hand_on()

    def _everywhere(self, act: Callable[[TrainingLoop], T]) -> list[T]:
        """Call `act` for every replica after it has applied its last window. Return the results by rank."""

        def work(loop: TrainingLoop, replica: Accumulating) -> T:
            replica.update()
            return act(loop)

        return self._run([partial(work, *pair) for pair in zip(self._loops, self._replicas, strict=True)])

    def _hand_on(self) -> None:
        events, self._events[:] = self._events[:], []
        for event in events:
            self._emit(event, event.at)
            if isinstance(event, Progress) and event.loss_sum is None:
                raise Diverged(f"the training loss is not finite in epoch {event.epoch}; lower train.lr")

    def _evaluate(self, epoch: int) -> None:
        """Record that the model contains every sample of the epoch, and evaluate it."""
        self._free = None
        self._merge(epoch)
        parts = len(self._loops)
        orders = [Evaluate(r, epoch, r, parts, in_turn=True, reason=f"epoch {epoch} is complete") for r in range(parts)]
        for order in orders:
            self._emit(order, now())
        self._everywhere(lambda loop: loop.evaluate(orders[loop.rank]))

    def _merge(self, epoch: int) -> None:
        for rank, spans in enumerate(self._merged):
            if spans:
                self._emit(Merged(now(), rank, epoch, union((), tuple(spans))), now())
        self._merged = [[] for _ in self._loops]

    def _mark(self) -> Mark:
        return Mark(now(), self._seen // self._samples, self._seq)

    def _save_if_due(self, soon: bool) -> None:
        mark = self._mark()
        if soon:
            self._emit(Ending(now()), now())
        reason = checkpoint_schedule.due(self._job.checkpoints, mark, self._saved, self._job.epochs, soon)
        if not reason:
            return
        ledgers, self._free = checkpoint_schedule.begun(self._samples, self._seen), None
        if ledgers:
            self._merge(mark.epochs)
        self._saved, index, self._saves = mark, self._saves, self._saves + 1
        parts = self._everywhere(lambda loop: loop.save(Save(loop.rank, index, not loop.rank, True, reason)))
        if any(part.error for part in parts):
            return
        windows, begun = self._windows, mark.epochs + len(ledgers)
        saved = CoordinatorCheckpoint(
            self._samples, begun, ledgers, windows.round, self._saves, windows.state, windows.plan
        )
        files = tuple(file for part in parts for file in part.files)
        solo.publish(self._job, Publish(index, tuple(range(len(self._loops))), files, saved, reason), emit=self._emit)
