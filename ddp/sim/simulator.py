"""Plays coordinator and workers of `ddp.core` in virtual time, with costs and deaths given from outside.

Owns virtual time, message latency and the stand-ins for compute, collective and averaging. Decides nothing that the core
decides: the same state machines run in production. A simulated run leaves the same records as a real one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ddp.core.commands import Abort, Apply, Average, Evaluate, Reduce, Stop
from ddp.core.coordinator import Coordinator, Output
from ddp.core.events import (
    Averaged,
    AverageFailed,
    Evaluated,
    Event,
    Finished,
    Lost,
    Progress,
    Ready,
    Reduced,
    Snapshot,
    Tick,
)
from ddp.core.policies import Policy
from ddp.core.spans import Batch
from ddp.core.worker import Idle, Step, Worker
from ddp.core.world import World


def _one(rank: int, step: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Costs:
    """What things cost, in virtual seconds."""

    step_s: Callable[[int, int], float] = _one
    """(rank, how many steps it has done) -> seconds of its next step."""
    latency_s: float = 0.001
    wire_s: float = 0.01
    """A collective, from the last arrival to its end."""
    reduce_s: float = 0.01
    """Averaging the snapshots."""
    copy_s: float = 0.0
    """Laying down a snapshot, or applying an update."""
    evaluate_s: float = 0.0
    report_s: float = 0.0
    """Least time between two reports of progress, unless the rank runs out of work."""


@dataclass
class Trained:
    """One step as a rank did it: the oracle that the ledger is held against."""

    rank: int
    batch: Batch
    start: float
    stop: float
    seen: float
    """Samples that the cohort had seen, by what the rank was told."""
    round: int = -1
    """The round that brought it into the model; -1: none."""


@dataclass
class _Rank:
    machine: Worker = field(default_factory=Worker)
    alive: bool = True
    busy: bool = False
    """In a step, a collective or an evaluation."""
    done: int = 0
    pending: list[Trained] = field(default_factory=list)
    """Trained and not reported."""
    fresh: list[Trained] = field(default_factory=list)
    """Trained since the last contribution."""
    laid: list[Trained] = field(default_factory=list)
    """In a snapshot that is not averaged yet."""
    reported: float = 0.0
    arrived: float = 0.0
    """At the last collective."""


@dataclass
class Simulation:
    """A run in virtual time and what came of it."""

    policy: Policy
    world: World
    costs: Costs = field(default_factory=Costs)
    deaths: tuple[tuple[float, int], ...] = ()
    """(time, rank): the rank is gone from then on, and its end is noticed."""
    stalls: tuple[tuple[float, int], ...] = ()
    """(time, rank): the rank does and says nothing from then on; only its silence tells."""
    tick_s: float = 0.5
    limit_s: float = 1e6
    now: float = 0.0
    status: str = "ok"
    records: list[tuple[float, Event | Output]] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    """All steps of all ranks, in the order of their ends."""
    weights: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """(round, samples that each rank brought in), as the ranks know it."""

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._ranks = [_Rank() for _ in range(self.world.size)]
        self._meetings: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._steps: dict[int, list[tuple[int, Step, float]]] = {}
        self.coordinator = Coordinator.start(self.policy, self.world, at=0.0)

    def run(self) -> Simulation:
        """Play to the end. Raises TimeoutError if the virtual time limit passes: a deadlock or a livelock."""
        for rank in range(self.world.size):
            samples = self.world.samples
            self._tell(Ready(self.now, rank, samples, 1, "same", "virtual", "virtual"))
        for at, rank in self.deaths:
            self._at(at, self._die, rank, "killed by the script")
        for at, rank in self.stalls:
            self._at(at, self._die, rank, "")
        self._tick()
        while self._heap and not self.coordinator.over:
            self.now, _, happen, args = heapq.heappop(self._heap)
            if self.now > self.limit_s:
                break
            happen(*args)
        if not self.coordinator.over:
            raise TimeoutError(f"nothing happens after {self.now} s: {self.coordinator.cohort}")
        return self

    def _at(self, time: float, happen: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (time, next(self._count), happen, args))

    def _after(self, delay: float, happen: Callable[..., None], *args: Any) -> None:
        self._at(self.now + delay, happen, *args)

    def _tell(self, event: Event) -> None:
        self._after(self.costs.latency_s, self._coordinate, event)

    def _coordinate(self, event: Event) -> None:
        event = replace(event, at=self.now)
        self.records.append((self.now, event))
        self.coordinator, outputs = self.coordinator.update(event)
        for output in outputs:
            self.records.append((self.now, output))
            match output:
                case Reduce():
                    self._after(self.costs.reduce_s, self._reduced, output)
                case Abort():
                    self.status = output.status
                case _ if hasattr(output, "rank"):
                    self._after(self.costs.latency_s, self._deliver, output)

    def _reduced(self, order: Reduce) -> None:
        for rank in order.members:
            self._bring_in(order.round, rank, self._ranks[rank].laid)
            self._ranks[rank].laid = []
        self._coordinate(Reduced(self.now, order.round, self.costs.reduce_s, 8))

    def _tick(self) -> None:
        self._coordinate(Tick(self.now))
        self._after(self.tick_s, self._tick)

    def _die(self, rank: int, reason: str) -> None:
        self._ranks[rank].alive = False
        if reason:
            self._tell(Lost(self.now, rank, reason))
        for key in list(self._meetings):
            self._meet(key, None)

    def _deliver(self, order: Any) -> None:
        rank = self._ranks[order.rank]
        if rank.alive:
            rank.machine = rank.machine.receive(order)
            self._act(order.rank)

    def _act(self, index: int) -> None:
        rank = self._ranks[index]
        if rank.busy or not rank.alive:
            return
        rank.machine, action = rank.machine.act()
        match action:
            case Idle():
                return
            case Step():
                took = self.costs.step_s(index, rank.done) if action.batch.samples else 0.0
                plan = self.coordinator.plan
                then = self._exchange if plan is not None and plan.in_step else self._stepped
                self._spend(index, took, then, action, self.now)
            case Average() if self.world.blocking:
                self._report(index)
                rank.busy, rank.arrived = True, self.now
                self._meet((action.round, action.members), index)
            case Average():
                self._report(index)
                self._spend(index, self.costs.copy_s, self._lay_down, action)
            case Apply():
                self._spend(index, self.costs.copy_s, self._averaged, action.round, 0)
            case Evaluate():
                self._spend(index, self.costs.evaluate_s, self._evaluated, action)
            case Stop():
                self._tell(Finished(self.now, index, "end", 0, 0))

    def _spend(self, index: int, seconds: float, then: Callable[..., None], *args: Any) -> None:
        self._ranks[index].busy = True
        self._after(seconds, self._spent, index, then, args)

    def _spent(self, index: int, then: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._ranks[index].alive:
            self._ranks[index].busy = False
            then(index, *args)
            self._act(index)

    def _stepped(self, index: int, step: Step, start: float) -> None:
        rank = self._ranks[index]
        rank.done += 1
        entry = Trained(index, step.batch, start, self.now, step.seen)
        self.trained.append(entry)
        rank.pending.append(entry)
        rank.fresh.append(entry)
        if step.last or self.now - rank.reported >= self.costs.report_s:
            self._report(index)

    def _exchange(self, index: int, step: Step, start: float) -> None:
        """Gradients are averaged inside the step: it ends for all when the last rank has arrived."""
        self._ranks[index].busy = True
        here = self._steps.setdefault(self._ranks[index].done, [])
        here.append((index, step, start))
        if len(here) == self.world.size:
            for rank, its_step, its_start in here:
                self._after(self.costs.wire_s, self._spent, rank, self._stepped, (its_step, its_start))
            self._steps.clear()

    def _report(self, index: int) -> None:
        rank = self._ranks[index]
        for epoch, group in itertools.groupby(rank.pending, key=lambda entry: entry.batch.epoch):
            entries = list(group)
            samples = sum(entry.batch.samples for entry in entries)
            busy = sum(entry.stop - entry.start for entry in entries)
            self._tell(Progress(self.now, index, epoch, len(entries), samples, busy, 0.0, 0.0))
        rank.pending, rank.reported = [], self.now

    def _lay_down(self, index: int, order: Average) -> None:
        rank = self._ranks[index]
        rank.laid, rank.fresh = rank.fresh, []
        samples = sum(entry.batch.samples for entry in rank.laid)
        self._tell(Snapshot(self.now, index, order.round, len(rank.laid), samples))

    def _averaged(self, index: int, round: int, steps: int) -> None:
        seconds = self.now - self._ranks[index].arrived if self.world.blocking else self.costs.copy_s
        self._tell(Averaged(self.now, index, round, steps, 0, seconds, 8, 0.0))

    def _evaluated(self, index: int, order: Evaluate) -> None:
        self._tell(Evaluated(self.now, index, order.epoch, 1, 0.0, 1.0, self.costs.evaluate_s))

    def _meet(self, key: tuple[int, tuple[int, ...]], index: int | None) -> None:
        """A rank arrives (or one dies: `index` None). All there: it runs. One gone: it breaks on those who are there."""
        here = self._meetings.setdefault(key, [])
        if index is not None:
            here.append(index)
        round, members = key
        if any(not self._ranks[r].alive for r in members):
            del self._meetings[key]
            for rank in here:
                self._after(self.costs.wire_s, self._spent, rank, self._broke, (round,))
        elif len(here) == len(members):
            del self._meetings[key]
            for rank in here:
                self._bring_in(round, rank, self._ranks[rank].fresh)
                steps, self._ranks[rank].fresh = len(self._ranks[rank].fresh), []
                self._after(self.costs.wire_s, self._spent, rank, self._averaged, (round, steps))

    def _broke(self, index: int, round: int) -> None:
        rank = self._ranks[index]
        rank.machine = rank.machine.forget_round()
        self._tell(AverageFailed(self.now, index, round, "a member is gone"))

    def _bring_in(self, round: int, rank: int, entries: list[Trained]) -> None:
        for entry in entries:
            assert entry.round < 0, f"{entry} enters the model twice"
            entry.round = round
        if not self.weights or self.weights[-1][0] != round:
            self.weights.append((round, {}))
        self.weights[-1][1][rank] = sum(entry.batch.samples for entry in entries)


def simulate(policy: Policy, world: World, **options: Any) -> Simulation:
    """Play a run in virtual time; `options` are fields of `Simulation`."""
    return Simulation(policy, world, **options).run()


__all__ = ["Costs", "Simulation", "Trained", "simulate"]
