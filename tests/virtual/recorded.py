"""Trains a recorded run again: the steps and averages of its ranks, in the order in which they came.

Where ranks meet whenever they get there, the order decides the bits, and it is in the record: what a rank trained before it
contributed to a round is in its events, where it took in an average is known from when its steps began. Knows no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ddp.backends import BACKENDS, SyncKind
from ddp.core.messages.commands import Apply, Average, Evaluate, Join, Pace, Reduce, Stop, Train
from ddp.core.messages.events import Averaged, Evaluated, Finished, Snapshot
from ddp.core.worker import Action, Step, Worker
from ddp.replica.task import Job
from ddp.virtual.sequential import SequentialRanks

Timed = tuple[float, Any]
"""When it was sent or came, seconds; event or command."""


@dataclass
class _Lane:
    """One rank: what it was ordered and has done."""

    begins: Sequence[float]
    """When its steps began."""
    orders: list[tuple[float, Train | Pace]] = field(default_factory=list)
    worker: Worker = field(default_factory=Worker)
    done: int = 0
    contributed: int = 0
    averages: dict[int, Average] = field(default_factory=dict)
    evaluations: dict[int, Evaluate] = field(default_factory=dict)

    def next(self) -> Step:
        """Return the next step. Raises ValueError where the record does not say which."""
        begins = self.begins[self.done] if self.done < len(self.begins) else float("inf")
        while self.orders and (self.orders[0][0] < begins or not self.worker.lane):
            self.worker = self.worker.receive(self.orders.pop(0)[1])
        self.worker, step = self.worker.act()
        if not isinstance(step, Step):
            raise ValueError("the record grants less than it says was trained: ranks were lost, or it was cut off")
        self.done += 1
        return step


class RecordedRun:
    """A run that is trained again. `records`: in the coordinator's order; `begins`: when the steps of each rank began."""

    def __init__(self, job: Job, records: Sequence[Timed], begins: Mapping[int, Sequence[float]]) -> None:
        if job.policy.every_step and SyncKind.STEP in BACKENDS[job.backend].sync:
            raise ValueError(
                "ranks that average gradients inside steps have one order alone: train it by engine=virtual"
            )
        self._snapshots = SyncKind.SNAPSHOT in BACKENDS[job.backend].sync
        self._lanes = [_Lane(begins.get(rank, ())) for rank in range(job.world_size)]
        self._job, self._records = job, records
        self.events: list[Any] = []
        """What the ranks report now."""

    def train(self) -> dict[int, str]:
        """Train; return the digest of each rank's parameters at the end."""
        with SequentialRanks(self._job) as ranks:
            for rank in range(self._job.world_size):
                self.events += ranks.ready(rank)
            for at, record in self._records:
                self._follow(ranks, at, record)
        return {event.rank: event.digest for event in self.events if isinstance(event, Finished)}

    def _follow(self, ranks: SequentialRanks, at: float, record: Any) -> None:
        match record:
            case Train() | Pace():
                self._lanes[record.rank].orders.append((at, record))
            case Average():
                self._lanes[record.rank].averages[record.round] = record
            case Join():
                self._alone(ranks, record.rank, record)
            case Evaluate():
                self._lanes[record.rank].evaluations[record.epoch] = record
            case Evaluated():
                self._alone(ranks, record.rank, self._lanes[record.rank].evaluations.pop(record.epoch))
            case Snapshot():
                self._contribute(ranks, record)
                self._alone(ranks, record.rank, self._lanes[record.rank].averages.pop(record.round))
            case Reduce():
                ranks.reduce(record)
            case Averaged() if self._snapshots:
                lane = self._lanes[record.rank]
                self._step(ranks, record.rank, bisect_left(lane.begins, record.at) - lane.done)
                self._alone(ranks, record.rank, Apply(record.rank, record.round, "recorded"))
            case Averaged():
                self._average(ranks, record)
            case Finished():
                self._alone(ranks, record.rank, Stop(record.rank, "recorded"))

    def _average(self, ranks: SequentialRanks, first: Averaged) -> None:
        """Average with all members, once the first of them says that it has."""
        order = self._lanes[first.rank].averages.get(first.round)
        if order is None:
            return  # with the first one
        places = (record for _, record in self._records if isinstance(record, Averaged))
        for event in [record for record in places if record.round == first.round]:
            self._contribute(ranks, event)
        actions = {rank: self._lanes[rank].averages.pop(first.round) for rank in order.members}
        for events in ranks.together(cast(dict[int, Action], actions)).values():
            self.events += events

    def _contribute(self, ranks: SequentialRanks, event: Averaged | Snapshot) -> None:
        lane = self._lanes[event.rank]
        lane.contributed += event.steps
        self._step(ranks, event.rank, lane.contributed - lane.done)

    def _step(self, ranks: SequentialRanks, rank: int, steps: int) -> None:
        for _ in range(steps):
            self._alone(ranks, rank, self._lanes[rank].next())

    def _alone(self, ranks: SequentialRanks, rank: int, action: Action) -> None:
        self.events += ranks.act(rank, action)


def evaluations(events: Sequence[Any]) -> list[tuple[int, int, float | None, float | None]]:
    """Return what evaluations gave, in one order: epoch, part, sums of loss and metric."""
    done = [event for event in events if isinstance(event, Evaluated)]
    return sorted((event.epoch, event.part, event.loss_sum, event.metric_sum) for event in done)
