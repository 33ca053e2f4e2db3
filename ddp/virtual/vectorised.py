"""Many ranks in one operation: steps are deferred until a result is needed, then computed for all ranks at once.

This only changes the last bits, because the inputs of a step are fixed when it begins. Averages:
`ddp.replica.memory.weighted_mean`.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ddp.backends import BACKENDS, SyncKind
from ddp.core.errors import RankFailed
from ddp.core.messages.commands import Apply, Average, Evaluate, Join, Reduce, Stop
from ddp.core.messages.events import Alive, Averaged, Evaluated, Finished, Progress, RankEvent, Ready, Snapshot, Trained
from ddp.core.values.frozen import finite
from ddp.core.worker import Action, Step
from ddp.engine.loop import TrainingLoop
from ddp.process.meter import peak_rss_bytes
from ddp.replica.memory import final_state
from ddp.replica.memory.weighted_mean import average, ratio
from ddp.replica.norms import least_samples
from ddp.replica.optim.outer_optimizer import outer
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.virtual.row_keeper import RowKeepers
from ddp.virtual.row_rank import RowRank
from ddp.virtual.rows import ReplicaRows


class VectorisedRanks:
    """All ranks of a job, as `ddp.sim.work.RankWork`. A context manager. Raises RankFailed for any error of the task."""

    def __init__(self, job: Job) -> None:
        self._job, size = job, job.world_size
        self._snapshots = SyncKind.SNAPSHOT in BACKENDS[job.backend].sync
        self._in_step = job.policy.every_step and not self._snapshots
        plain = replace(job, links=None, speeds=(), faults=(), audit="", profile_steps=0)
        self._loop = TrainingLoop(plain, 0, lambda event: None)
        self._replica = self._loop.replica
        self._rows = ReplicaRows(job, self._replica, 1 if self._in_step else size)
        self._keepers = RowKeepers(job, self._replica, self._rows)
        self._ranks = [RowRank() for _ in range(size)]
        self._mean = self._rows.flat[0].clone()
        self._outer = outer(job.averaging, self._mean)
        self._laid = torch.empty_like(self._rows.flat) if not self._in_step else self._rows.flat
        """Snapshots of the ranks; after averaging, the difference of each from the average."""
        self._apart: dict[int, tuple[float | None, float | None]] = {}
        """Rank -> (divergence, squared distance) in the last average."""
        self._averaged = False

    def __enter__(self) -> VectorisedRanks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.close()

    @property
    def replica(self) -> Replica:
        """Return a replica."""
        return self._replica

    def ready(self, rank: int) -> Sequence[RankEvent]:
        """Return the events of a rank that starts."""
        replica = self._replica
        count = sum(p.numel() for p in replica.model.parameters())
        about = str(self._loop.device), "memory", replica.feed.kind, replica.note
        more: dict[str, Any] = {"least": least_samples(replica.model), "data": replica.record.content}
        return (Ready(0.0, rank, replica.samples, count, replica.state.digest(), *about, **more),)

    def begin(self, rank: int, step: Step) -> None:
        """Note a step that begins."""
        self._ranks[rank].begun.append(step)

    def act(self, rank: int, action: Action) -> Sequence[RankEvent]:
        """Have one rank carry out an action, and return its events."""
        with self._guarded(rank):
            return self._act(rank, action)

    def _act(self, rank: int, action: Action) -> Sequence[RankEvent]:
        match action:
            case Step():
                return self._end(rank, action)
            case Average():
                return (*self.report(rank), self._snapshot(rank, action.round))
            case Apply():
                return (self._apply(rank, action.round),)
            case Evaluate():
                return (*self.report(rank), *self._sum_up(rank), self._evaluate(rank, action))
            case Join():
                return (Alive(0.0, rank),)
            case Stop():
                return self._finish(rank)
        raise ValueError(f"virtual.path=vectorised has no {type(action).__name__}: use virtual.path=sequential")

    def together(self, actions: Mapping[int, Action]) -> Mapping[int, Sequence[RankEvent]]:
        """Have ranks step or average together, and return their events."""
        steps = {rank: action for rank, action in actions.items() if isinstance(action, Step)}
        if steps:
            with self._guarded(min(steps)):
                return self._step_shared(steps)
        orders = {rank: action for rank, action in actions.items() if isinstance(action, Average)}
        self._flush()
        members = list(orders)
        for rank in members:
            self._laid[rank].copy_(self._rows.flat[rank])
        trained = self._reduce(members, [self._ranks[rank].samples for rank in members])
        return {rank: (self._take(rank, order.round, trained),) for rank, order in orders.items()}

    def report(self, rank: int) -> Sequence[RankEvent]:
        """Report a rank's trained steps, after computing all steps that have begun."""
        own = self._ranks[rank]
        if not own.ended:
            return ()
        if len(own.losses) < len(own.ended):
            self._flush()
        reports = []
        for epoch, group in groupby(own.ended, key=lambda step: step.batch.epoch):
            steps = list(group)
            sizes = [step.batch.samples for step in steps]
            loss = sum(own.losses.popleft() * size for size in sizes if size)
            (rate, *_) = self._rows.rates(steps[-1:])
            figures = len(steps), sum(sizes), 0.0, finite(loss), float(rate)
            reports.append(Progress(0.0, rank, epoch, *figures, (), own.after))
        own.ended.clear()
        return reports

    def reduce(self, order: Reduce) -> int:
        """Average snapshots. Return the bytes moved."""
        self._reduce(list(order.members), list(order.samples))
        return (2 * len(order.members) + 1) * self._replica.state.bytes

    def _end(self, rank: int, step: Step) -> Sequence[RankEvent]:
        own = self._ranks[rank]
        other, own.epoch = own.epoch != step.batch.epoch, step.batch.epoch
        reports = (*self.report(rank), *self._sum_up(rank)) if other else ()
        own.ended.append(step)
        own.trained.append(step.batch)
        own.steps += 1
        own.samples += step.batch.samples
        return (*reports, *self.report(rank)) if step.last else reports

    def _sum_up(self, rank: int) -> list[RankEvent]:
        """Return the checksums of a rank's samples, and of their order, since the last ones."""
        own, hashes, sums = self._ranks[rank], self._rows.hashes[rank], list[RankEvent]()
        for epoch, group in groupby(own.trained, key=lambda batch: batch.epoch):
            batches = [batch for batch in group if batch.samples]
            if not batches:
                continue
            rows = [hashes.popleft() for _ in batches if hashes]
            loss_sum = finite(own.loss_sums.pop(epoch, 0.0))
            sums.append(Trained(0.0, rank, *self._replica.record.sums(epoch, batches, rows), loss_sum))
        own.trained.clear()
        return sums

    @contextmanager
    def _guarded(self, rank: int) -> Iterator[None]:
        """Raise RankFailed for an exception of the task in this block."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise RankFailed(rank, f"{type(error).__name__}: {error}", traceback.format_exc()) from error

    def _flush(self) -> None:
        """Compute all steps that have begun, for many ranks at once."""
        waiting = [rank for rank, own in enumerate(self._ranks) if own.begun]
        while waiting:
            sizes: dict[int, list[int]] = defaultdict(list)
            for rank in waiting:
                sizes[self._ranks[rank].begun[0].batch.samples].append(rank)
            for size, ranks in sizes.items():
                steps = [self._ranks[rank].begun.popleft() for rank in ranks]
                losses = self._keepers.step(ranks, steps)
                for rank, step, loss in zip(ranks, steps, losses, strict=bool(size)):
                    self._ranks[rank].note(step.batch, loss)
            waiting = [rank for rank in waiting if self._ranks[rank].begun]

    def _step_shared(self, steps: Mapping[int, Step]) -> dict[int, Sequence[RankEvent]]:
        for rank, loss in self._keepers.step_shared(steps).items():
            self._ranks[rank].note(steps[rank].batch, loss)
        return {rank: self._end(rank, step) for rank, step in steps.items()}

    def _snapshot(self, rank: int, round: int) -> Snapshot:
        self._flush()
        self._laid[rank].copy_(self._rows.flat[rank])
        return Snapshot(0.0, rank, round, *self._ranks[rank].contribute(round))

    def _reduce(self, members: list[int], samples: Sequence[int]) -> bool:
        """Average the snapshots, and replace each by its difference from the average. Return whether anything was
        trained."""
        settings = self._job.averaging
        weights = [settings.weight(count) for count in samples]
        if not any(weights) and not self._snapshots:
            self._apart = dict.fromkeys(members, (0.0, 0.0))
            return False
        blend = 1.0 if settings.elastic is None else settings.elastic
        norm, changes = average(self._mean, [self._laid[rank] for rank in members], weights, self._outer, blend)
        self._apart = {
            rank: (ratio(change, norm), finite(change)) for rank, change in zip(members, changes, strict=True)
        }
        self._averaged = True
        return True

    def _take(self, rank: int, round: int, trained: bool) -> Averaged:
        """Apply the average of a collective to a rank. A collective moves float64: the values and the weight."""
        with self._keepers.average(rank, round):
            if trained:
                if self._job.averaging.apart:
                    self._rows.flat[rank].sub_(self._laid[rank])
                else:
                    self._rows.flat[rank].copy_(self._mean)
                self._reset(rank)
        contribution = self._ranks[rank].contribute(round)
        divergence, distance = self._apart[rank]
        return Averaged(0.0, rank, round, *contribution, 0.0, 8 * self._mean.numel() + 8, divergence, distance=distance)

    def _apply(self, rank: int, round: int) -> Averaged:
        """Add to a rank the change made by an average of snapshots."""
        self._flush()
        own = self._ranks[rank]
        with self._keepers.average(rank, round):
            if own.steps == 0 and not self._job.averaging.apart:
                self._rows.flat[rank].copy_(self._mean)
            else:
                self._rows.flat[rank].sub_(self._laid[rank])
            self._reset(rank)
        own.applied = True
        divergence, distance = self._apart[rank]
        return Averaged(0.0, rank, round, 0, 0, 0.0, 2 * self._replica.state.bytes, divergence, distance=distance)

    def _reset(self, rank: int) -> None:
        if self._job.averaging.resets:
            self._rows.optimizer.reset(rank)

    def _shown(self, rank: int) -> Tensor:
        """Return the parameters that are evaluated for a rank: the last average, if there is one."""
        averaged = self._ranks[rank].applied if self._snapshots else self._averaged and self._job.averaging.apart
        return self._mean if averaged else self._rows.flat[0 if self._in_step else rank]

    def _evaluate(self, rank: int, order: Evaluate) -> Evaluated:
        with self._keepers.evaluation(rank, order.epoch):
            self._replica.state.tensors[0].copy_(self._shown(rank))
            samples, loss, metric, content = self._replica.evaluate(order.part, order.parts, lambda: None)
        figures = samples, finite(loss), finite(metric), 0.0, order.part, finite(content), ""
        return Evaluated(0.0, rank, order.epoch, *figures, self._replica.record.shown())

    def _finish(self, rank: int) -> Sequence[RankEvent]:
        self._flush()
        reports = self._sum_up(rank)
        if self._job.averaging.apart and (self._averaged or self._ranks[rank].applied):
            self._rows.flat[rank].copy_(self._mean)
        self._replica.state.tensors[0].copy_(self._rows.flat[0 if self._in_step else rank])
        if self._job.keep_state:
            final_state.write(self._replica.model, final_state.place(self._job.scratch, rank))
        kept = self._keepers.finish(rank)
        return (*reports, Finished(0.0, rank, self._replica.state.digest(), peak_rss_bytes(), 0, kept=kept))
