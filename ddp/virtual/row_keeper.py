"""Defines `RowKeepers`: records some steps of ranks whose replicas are rows, so that the audit can repeat them.

A keyed hash chooses the ranks. A step shared by all ranks has one replica, whose file describes all of them. A `StepKeeper`
reads the rows before and after a step. Changes nothing. Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from ddp.core.messages.event_parts import Files
from ddp.core.worker import Step
from ddp.replica.evidence.keeper import MOST, TIMES, StepKeeper
from ddp.replica.evidence.step_draws import drawn
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.virtual.rows import ReplicaRows

RANKS = 16
"""Maximum number of ranks whose steps are recorded, only a few for each but the first: recording takes long in comparison
with a step that is vectorised over ranks."""
STEPS = 2
"""About the number of steps recorded for such a rank."""


@dataclass
class _KeptRank:
    keeper: StepKeeper
    steps: int = 0
    averages: int = 0
    """Averages that the rank has received."""


class RowKeepers:
    """The keepers of a job's ranks."""

    def __init__(self, job: Job, replica: Replica, rows: ReplicaRows) -> None:
        self._replica, self._rows, self._kept = replica, rows, dict[int, _KeptRank]()
        for rank in _drawn(job, replica.state.bytes, rows.shared) if job.audit else ():
            pieces = partial(rows.pieces, rank)
            self._kept[rank] = _KeptRank(StepKeeper(job, rank, replica, pieces, rows.shared, few=rank > 0))

    def step(self, ranks: Sequence[int], steps: Sequence[Step]) -> list[float]:
        """Train one step of each of the ranks, all with the same batch size. Return the losses."""
        own = [(self._kept[rank], place) for place, rank in enumerate(ranks) if rank in self._kept]
        for kept, place in own:
            self._begin(kept, steps[place])
        losses = self._rows.step(ranks, steps) if steps[0].batch.samples else []
        for kept, place in own:
            self._end(kept, steps[place], losses[place : place + 1] or [None])
        return losses

    def step_shared(self, steps: Mapping[int, Step]) -> dict[int, float]:
        """Train one step of all ranks. Return the losses of the ranks that have samples."""
        groups: dict[int, list[int]] = {}
        for rank, step in steps.items():
            groups.setdefault(step.batch.samples, []).append(rank)
        kept, turns = self._kept.get(0), sorted(steps)
        if kept is not None:
            others = [(rank, ((steps[rank].batch.start, steps[rank].batch.stop),)) for rank in turns[1:]]
            self._begin(kept, steps[turns[0]], others)
        losses = self._rows.step_shared(
            [(ranks, [steps[rank] for rank in ranks]) for size, ranks in groups.items() if size]
        )
        if kept is not None:
            self._end(kept, steps[turns[0]], [losses.get(rank) for rank in turns])
            kept.averages += 1
        return losses

    def _begin(self, kept: _KeptRank, step: Step, others: Sequence[tuple[int, tuple[tuple[int, int]]]] = ()) -> None:
        keeper, batch = kept.keeper, step.batch
        if keeper.due(batch, step.seen, kept.steps, kept.averages):
            keeper.begin(batch, ((batch.start, batch.stop),), step.seen, kept.steps, kept.averages, others)

    def _end(self, kept: _KeptRank, step: Step, losses: Sequence[float | None]) -> None:
        keeper, replica, shared = kept.keeper, self._replica, self._rows.shared
        if keeper.keeping:
            replica.rates.apply(replica.fraction(step.seen))
            rates = [float(group["lr"]) for group in replica.optimizer.param_groups]
            for loss in losses:
                keeper.add(None if loss is None else torch.tensor(loss, dtype=torch.float64), rates)
        if keeper.ends(step.last, kept.averages):
            keeper.end(kept.steps, kept.averages + shared)
        kept.steps += 1

    @contextmanager
    def average(self, rank: int, round: int) -> Iterator[None]:
        """Record the state of a rank before and after it receives the average of a round, in this block."""
        kept = self._kept.get(rank)
        if kept is not None:
            kept.keeper.average(round)
        yield
        if kept is not None:
            kept.averages += 1
            kept.keeper.watch.averaged(kept.averages)

    @contextmanager
    def evaluation(self, rank: int, epoch: int) -> Iterator[None]:
        """Record a rank's state before an evaluation in this block, and the result."""
        kept = self._kept.get(rank)
        if kept is not None:
            kept.keeper.rests("the evaluation", kept.averages)
        yield
        if kept is not None:
            kept.keeper.evaluated(epoch)

    def finish(self, rank: int) -> Files:
        """Record the final model of a rank, which must be in the replica. Return the files."""
        kept = self._kept.get(rank)
        return () if kept is None else kept.keeper.finish()


def _drawn(job: Job, size: int, shared: bool) -> Sequence[int]:
    """Return the ranks whose steps are recorded: the first, whose model is evaluated again, and others by a draw, as many
    as replicas of `size` bytes allow. Only the first if all ranks share the replica."""
    most = 0 if shared else min(RANKS - 1, MOST // (STEPS * TIMES * size))
    return [0, *sorted(range(1, job.world_size), key=lambda rank: drawn(job.audit, 1 << 32, "row", rank))[:most]]
