"""The states of a simulation's ranks, and the entries that are made in them. Decides nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ddp.core.event_parts import WorkSeconds
from ddp.core.events import Alive, Progress, RankEvent
from ddp.core.worker import Step
from ddp.core.world import World
from ddp.sim.parts import Costs, SimulatedRank, TrainedBatch
from ddp.sim.timeline import EventQueue

Measured = Callable[[int, str, float, float, int], None]
"""(rank, kind, start, stop, number of the collective) of a slice, as `ddp.core.measurements.Slice` has them."""


class RankStates:
    """All ranks as they are. `send` takes an event to the coordinator."""

    def __init__(self, world: World, costs: Costs, timeline: EventQueue, send: Callable[[RankEvent], None]) -> None:
        self.world, self.costs, self.timeline = world, costs, timeline
        self.keep = True
        """Keep every step, which of them are in each replica, and what ranks brought into rounds."""
        self.all = [SimulatedRank() for _ in range(world.size)]
        self.trained: list[TrainedBatch] = []
        self.weights: list[tuple[int, dict[int, int]]] = []
        """By round: rank -> samples that it brought in."""
        self.measured: Measured | None = None
        """Called with every slice of a rank's time."""
        self.began: Callable[[int, str], None] | None = None
        """Called with rank and kind when a slice begins."""
        self.dropped: list[tuple[float, RankEvent]] = []
        """Messages that were lost, and when they were sent."""
        self._send = send

    def turn(self, index: int, kind: str = "", seq: int = 0) -> None:
        """End what the rank was doing, and begin a slice of `kind`; empty: of none."""
        rank, now = self.all[index], self.timeline.now
        if self.measured is not None and rank.doing and now > rank.since:
            self.measured(index, rank.doing, rank.since, now, rank.seq)
        rank.doing, rank.since, rank.seq = kind, now, seq
        if kind and self.began is not None:
            self.began(index, kind)

    def tell(self, event: RankEvent) -> None:
        """Send an event, unless it is one of those that are lost."""
        rank = self.all[event.rank]
        if rank.mute and not isinstance(event, Alive):
            rank.mute -= 1
            self.dropped.append((self.timeline.now, event))
        else:
            self._send(event)

    def train(self, index: int, step: Step, start: float) -> None:
        """End a step of `index` now."""
        entry = TrainedBatch(index, step.batch, start, self.timeline.now, step.seen)
        self.all[index].last = entry
        if self.keep:
            self.trained.append(entry)

    def done(self, index: int, step: Step) -> None:
        """Count a step that the rank has done, and report if it is time."""
        rank = self.all[index]
        assert rank.last is not None
        rank.done += 1
        rank.pending.append(rank.last)
        rank.steps += 1
        rank.samples += step.batch.samples
        if step.last or self.timeline.now - rank.reported >= self.costs.report_s:
            self.report(index)

    def report(self, index: int) -> None:
        """Report what was trained since the last report."""
        rank = self.all[index]
        for epoch, group in itertools.groupby(rank.pending, key=lambda entry: entry.batch.epoch):
            entries = list(group)
            samples = sum(entry.batch.samples for entry in entries)
            busy = sum(entry.stop - entry.start for entry in entries)
            lr = self.costs.rate(entries[-1].seen / (self.world.epochs * self.world.samples))
            part = WorkSeconds(rank.data, rank.compute)  # of the first epoch of them
            rank.data = rank.compute = 0.0
            self.tell(Progress(0.0, index, epoch, len(entries), samples, busy, 0.0, lr, (), rank.after, work=part))
        rank.pending, rank.reported = [], self.timeline.now

    def contribute(self, index: int, round: int) -> tuple[int, int]:
        """Return (steps, samples) that the rank contributes to an average, and count anew."""
        rank = self.all[index]
        contribution = (rank.steps, rank.samples)
        if self.keep:
            if not self.weights or self.weights[-1][0] != round:
                self.weights.append((round, {}))
            self.weights[-1][1][index] = rank.samples
        rank.steps, rank.samples, rank.after = 0, 0, round
        return contribution
