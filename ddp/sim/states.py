"""The states of a simulation's ranks, and their bookkeeping. Decides nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.events import Alive, Averaged, Evaluated, Progress, RankEvent
from ddp.core.settings.world import World
from ddp.core.values.frozen import replace
from ddp.core.worker import Step
from ddp.sim.parts import Costs, SimulatedRank, TrainedBatch
from ddp.sim.timeline import EventQueue
from ddp.sim.work import RankWork

Measured = Callable[[int, str, float, float, int], None]
"""(rank, kind, start, stop, number of the collective) of a slice as in `ddp.core.messages.measurements.Slice`."""


def _by_epoch(pending: Sequence[TrainedBatch]) -> list[list[TrainedBatch]]:
    return [list(group) for _, group in itertools.groupby(pending, key=lambda entry: entry.batch.epoch)]


class RankStates:
    """The states of all ranks. `send` sends an event to the coordinator."""

    def __init__(self, world: World, costs: Costs, timeline: EventQueue, send: Callable[[RankEvent], None]) -> None:
        self.world, self.costs, self.timeline = world, costs, timeline
        self.keep = True
        """Whether to keep every step, which steps are in each replica, and the ranks' contributions to rounds."""
        self.all = [SimulatedRank(alive=rank < world.size - world.absent) for rank in range(world.size)]
        self.trained: list[TrainedBatch] = []
        self.weights: list[tuple[int, dict[int, int]]] = []
        """(round, rank -> samples that it contributed)."""
        self.measured: Measured | None = None
        """Called with every slice of a rank's time."""
        self.began: Callable[[int, str], None] | None = None
        """Called with rank and kind when a slice begins."""
        self.dropped: list[tuple[float, RankEvent]] = []
        """(time of sending, message) of the lost messages."""
        self.work: RankWork | None = None
        """Training for real; None: ranks only report success."""
        self._send = send

    def turn(self, index: int, kind: str = "", seq: int = 0) -> None:
        """End the rank's present slice of time, and begin one of `kind` (empty: none)."""
        rank = self.all[index]
        if self.measured is None and self.began is None:
            rank.doing = kind
            return
        now = self.timeline.now
        if self.measured is not None and rank.doing and now > rank.since:
            self.measured(index, rank.doing, rank.since, now, rank.seq)
        rank.doing, rank.since, rank.seq = kind, now, seq
        if kind and self.began is not None:
            self.began(index, kind)

    def tell(self, event: RankEvent) -> None:
        """Send an event, unless it is to be lost."""
        rank = self.all[event.rank]
        if rank.mute and not isinstance(event, Alive):
            rank.mute -= 1
            self.dropped.append((self.timeline.now, event))
        else:
            self._send(event)

    def train(self, index: int, step: Step, start: float, busy: float | None = None) -> None:
        """Record the end of a step of `index` now. `busy`: seconds of it; None: all since its start."""
        now = self.timeline.now
        entry = TrainedBatch(index, step.batch, start, now, step.seen, now - start if busy is None else busy)
        self.all[index].last = entry
        if self.keep:
            self.trained.append(entry)

    def say(self, index: int, events: Sequence[RankEvent], seconds: float = 0.0, away_s: float = 0.0) -> None:
        """Send the events that a rank reports of its work, with virtual times: `seconds`, and `away_s` in addition."""
        rank = self.all[index]
        for event in events:
            if isinstance(event, Progress):
                done, rank.pending = rank.pending[: event.steps], rank.pending[event.steps :]
                part = WorkSeconds(rank.data, rank.compute, link=rank.sent)  # reported for the first of several epochs
                rank.data = rank.compute = rank.sent = 0.0
                event = replace(event, busy_s=sum(entry.busy for entry in done), work=part)
            elif isinstance(event, Averaged):
                event = replace(event, seconds=seconds, away_s=away_s)
            elif isinstance(event, Evaluated):
                event = replace(event, seconds=seconds)
            self.tell(event)

    def done(self, index: int, step: Step, reports: Sequence[RankEvent] | None = None) -> None:
        """Count a step that the rank has done; report if it is due. `reports`: events of a step that was trained for
        real."""
        rank = self.all[index]
        assert rank.last is not None
        rank.done += 1
        rank.pending.append(rank.last)
        rank.steps += 1
        rank.samples += step.batch.samples
        if self.work is not None:
            self.say(index, self.work.act(index, step) if reports is None else reports)
        elif step.last or self.timeline.now - rank.reported >= self.costs.report_s:
            self.report(index)

    def report(self, index: int) -> None:
        """Report everything trained since the last report."""
        rank = self.all[index]
        rank.reported = self.timeline.now
        if self.work is not None:
            self.say(index, self.work.report(index))
            return
        if not rank.pending:
            return
        pending, rank.pending = rank.pending, []
        for entries in [pending] if len(pending) == 1 else _by_epoch(pending):
            steps, samples, busy = 0, 0, 0.0
            for entry in entries:
                steps, samples, busy = steps + 1, samples + entry.batch.samples, busy + entry.busy
            lr = self.costs.rate(entries[-1].seen / (self.world.epochs * self.world.samples))
            part = WorkSeconds(rank.data, rank.compute, link=rank.sent)  # reported for the first of several epochs
            rank.data = rank.compute = rank.sent = 0.0
            epoch = entries[0].batch.epoch
            self.tell(Progress(0.0, index, epoch, steps, samples, busy, 0.0, lr, after=rank.after, work=part))

    def contribute(self, index: int, round: int) -> tuple[int, int]:
        """Return the (steps, samples) that the rank contributes to an average, and reset both."""
        rank = self.all[index]
        contribution = (rank.steps, rank.samples)
        if self.keep:
            if not self.weights or self.weights[-1][0] != round:
                self.weights.append((round, {}))
            self.weights[-1][1][index] = rank.samples
        rank.steps, rank.samples, rank.after = 0, 0, round
        return contribution
