"""Plays coordinator and workers of `ddp.core` in virtual time, with costs and faults given from outside.

Owns virtual time, message latency and the stand-ins for compute, collective and averaging. Decides nothing that the core
decides: the same state machines run in production. A simulated run leaves the same records as a real one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ddp.core.commands import Abort, Adopt, Apply, Average, Drop, Evaluate, Join, RankCommand, Reduce, Save, Share, Stop
from ddp.core.coordinator import Coordinator, Output
from ddp.core.events import (
    Alive,
    Averaged,
    AverageFailed,
    Evaluated,
    Event,
    Failed,
    Finished,
    Lost,
    Progress,
    RankEvent,
    Ready,
    Reduced,
    Saved,
    Shared,
    Snapshot,
    Tick,
)
from ddp.core.faults import Fault
from ddp.core.policies import Policy
from ddp.core.rounds import IN_STEP
from ddp.core.worker import Idle, Step, Worker
from ddp.core.world import World
from ddp.sim.collectives import Collectives, Then
from ddp.sim.parts import Costs, Rank, Trained


def _never(rank: int) -> bool:
    return False


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
    faults: tuple[Fault, ...] = ()
    """What goes wrong at which step of which rank."""
    torn: Callable[[int], bool] = _never
    """rank -> whether a collective that is on the wire while another member dies breaks on it."""
    watch: Callable[[Simulation], None] | None = None
    """Called after every event that the coordinator has seen."""
    tick_s: float = 0.5
    limit_s: float = 1e6
    now: float = 0.0
    status: str = "ok"
    records: list[tuple[float, Event | Output]] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    """All steps of all ranks, in the order of their ends."""
    weights: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """(round, samples that each rank brought in), as the ranks know it."""
    struck: list[tuple[float, Fault]] = field(default_factory=list)
    """(time, fault): those of `faults` that came to pass; the others were for steps that were never taken."""

    def __post_init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self.ranks = [Rank() for _ in range(self.world.size)]
        self._script: dict[tuple[int, int], list[Fault]] = {}
        for fault in self.faults:
            self._script.setdefault((fault.rank, fault.step), []).append(fault)
        self._average = 0
        self._shared: dict[int, int] = {}
        beat_s = self.world.deadline_s / 5
        self._collectives = Collectives(self._after, self.costs.wire_s, beat_s, self._beat, self.torn)
        self.coordinator = Coordinator.start(self.policy, self.world, at=0.0)

    def run(self) -> Simulation:
        """Play to the end. Raises TimeoutError if the virtual time limit passes: a deadlock or a livelock."""
        for rank in range(self.world.size):
            self._tell(Ready(self.now, rank, self.world.samples, 1, "same", "virtual", "virtual"))
        for at, rank in self.deaths:
            self._at(at, self._die, rank)
        for at, rank in self.stalls:
            self._at(at, self._stall, rank)
        self._tick()
        while self._heap and not self.coordinator.over:
            self.now, _, happen, args = heapq.heappop(self._heap)
            if self.now > self.limit_s:
                break
            happen(*args)
        if not self.coordinator.over:
            raise TimeoutError(f"nothing happens after {self.now} s: {self.coordinator.cohort}")
        return self

    def kill(self, rank: int, delay: float) -> None:
        """Have `rank` die `delay` seconds from now; for a `watch` that waits for its moment."""
        self._after(delay, self._die, rank)

    def contained(self, rank: int) -> list[Trained]:
        """The steps that are in the replica of `rank`."""
        bits = self.ranks[rank].content
        return [entry for index, entry in enumerate(self.trained) if bits >> index & 1]

    def _at(self, time: float, happen: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (time, next(self._count), happen, args))

    def _after(self, delay: float, happen: Callable[..., None], *args: Any) -> None:
        self._at(self.now + delay, happen, *args)

    def _tell(self, event: RankEvent) -> None:
        rank = self.ranks[event.rank]
        if rank.mute:
            rank.mute -= 1
        else:
            self._after(self.costs.latency_s, self._coordinate, event)

    def _coordinate(self, event: Event) -> None:
        event = replace(event, at=self.now)
        self.records.append((self.now, event))
        self.coordinator, outputs = self.coordinator.update(event)
        for output in outputs:
            self.records.append((self.now, output))
            match output:
                case Reduce():
                    self._average = 0
                    for rank in output.members:
                        self._average |= self.ranks[rank].laid
                    self._after(
                        self.costs.reduce_s, self._coordinate, Reduced(0.0, output.round, self.costs.reduce_s, 8)
                    )
                case Abort():
                    self.status = output.status
                case Drop():
                    self._end(output.rank)
                case _ if isinstance(output, RankCommand):
                    self._after(self.costs.latency_s, self._deliver, output)
        if self.watch is not None:
            self.watch(self)

    def _tick(self) -> None:
        self._coordinate(Tick(self.now))
        self._after(self.tick_s, self._tick)

    def _end(self, rank: int) -> None:
        self.ranks[rank].alive = False
        self._collectives.die(rank)

    def _die(self, rank: int) -> None:
        self._end(rank)
        self._after(self.costs.latency_s, self._coordinate, Lost(self.now, rank, "killed by the script"))

    def _stall(self, rank: int) -> None:
        self.ranks[rank].alive = False

    def _strike(self, index: int) -> None:
        """What the script has in store for the step that `index` is about to do."""
        rank = self.ranks[index]
        for fault in self._script.pop((index, rank.done), ()):
            self.struck.append((self.now, fault))
            match fault.kind:
                case "crash":
                    self._die(index)
                case "raise":
                    self._tell(Failed(self.now, index, "raised by the script", ""))
                    self._die(index)
                case "stall":
                    self._stall(index)
                case "slow":
                    rank.slow = fault.value
                case "lose":
                    rank.mute += 1

    def _deliver(self, order: Any) -> None:
        self.ranks[order.rank].inbox.append(order)
        self._act(order.rank)

    def _act(self, index: int) -> None:
        rank = self.ranks[index]
        if rank.busy or not rank.alive:
            return
        for order in rank.inbox:
            rank.machine = rank.machine.receive(order)
        rank.inbox.clear()
        before = rank.machine
        rank.machine, action = before.act()
        if isinstance(action, Step):
            self._strike(index)
            if not rank.alive:
                return
        costs = self.costs
        match action:
            case Idle():
                return
            case Step():
                took = rank.slow * costs.step_s(index, rank.done) if action.batch.samples else 0.0
                plan = self.coordinator.plan
                in_step = plan is not None and plan.in_step
                then = partial(self._exchange, before) if in_step else self._stepped
                self._spend(index, took, then, action, self.now)
            case Average() if self.world.blocking:
                self._meet(index, action)
            case Average():
                self._report(index)
                self._spend(index, costs.copy_s, self._lay_down, action)
            case Apply():
                self._spend(index, costs.copy_s, self._applied, action.round)
            case Evaluate():
                self._spend(index, costs.evaluate_s, self._evaluated, action)
            case Join():
                self._join(index, action)
            case Share():
                self._shared[action.round] = rank.content if self._in_step else rank.result
                self._spend(index, costs.copy_s, self._tell_of, Shared(0.0, index, action.round))
            case Adopt():
                self._spend(index, costs.copy_s, self._adopted, action.round)
            case Save():
                self._spend(index, costs.copy_s, self._tell_of, Saved(0.0, index, action.index, ()))
            case Stop():
                self._tell(Finished(self.now, index, "end", 0, 0))

    @property
    def _in_step(self) -> bool:
        return self.coordinator.plan is not None and self.coordinator.plan.in_step

    def _spend(self, index: int, seconds: float, then: Callable[..., None], *args: Any) -> None:
        self.ranks[index].busy = True
        self._after(seconds, self._spent, index, then, *args)

    def _spent(self, index: int, then: Callable[..., None], *args: Any) -> None:
        if self.ranks[index].alive:
            self.ranks[index].busy = False
            then(index, *args)
            self._act(index)

    def _tell_of(self, index: int, event: RankEvent) -> None:
        self._tell(event)

    def _stepped(self, index: int, step: Step, start: float) -> None:
        self._train(index, step, start)
        self.ranks[index].content |= 1 << len(self.trained) - 1
        self._done(index, step)

    def _train(self, index: int, step: Step, start: float) -> None:
        entry = Trained(index, step.batch, start, self.now, step.seen)
        self.trained.append(entry)
        self.ranks[index].last = entry

    def _done(self, index: int, step: Step) -> None:
        rank = self.ranks[index]
        assert rank.last is not None
        rank.done += 1
        rank.pending.append(rank.last)
        rank.steps += 1
        rank.samples += step.batch.samples
        if step.last or self.now - rank.reported >= self.costs.report_s:
            self._report(index)

    def _exchange(self, before: Worker, index: int, step: Step, start: float) -> None:
        """Gradients are averaged inside the step: it ends for all when the last rank has arrived."""
        rank = self.ranks[index]
        rank.step = (step, start)

        def everyone(members: list[int]) -> None:
            first = len(self.trained)
            for member in members:
                entering = self.ranks[member].step
                assert entering is not None
                self._train(member, *entering)
            for member in members:
                self.ranks[member].result = self.ranks[member].content | ((1 << len(self.trained)) - (1 << first))

        def then() -> None:
            rank.content = rank.result
            self._done(index, step)

        def broke() -> None:
            rank.machine = before
            self._broke(index, IN_STEP)

        self._enter(index, everyone, then, broke)

    def _report(self, index: int) -> None:
        rank = self.ranks[index]
        for epoch, group in itertools.groupby(rank.pending, key=lambda entry: entry.batch.epoch):
            entries = list(group)
            samples = sum(entry.batch.samples for entry in entries)
            busy = sum(entry.stop - entry.start for entry in entries)
            self._tell(Progress(self.now, index, epoch, len(entries), samples, busy, 0.0, 0.0, (), rank.after))
        rank.pending, rank.reported = [], self.now

    def _lay_down(self, index: int, order: Average) -> None:
        rank = self.ranks[index]
        rank.laid = rank.content
        self._tell(Snapshot(self.now, index, order.round, *self._contribute(index, order.round)))

    def _contribute(self, index: int, round: int) -> tuple[int, int]:
        rank = self.ranks[index]
        brought = (rank.steps, rank.samples)
        if not self.weights or self.weights[-1][0] != round:
            self.weights.append((round, {}))
        self.weights[-1][1][index] = rank.samples
        rank.steps, rank.samples, rank.after = 0, 0, round
        return brought

    def _applied(self, index: int, round: int) -> None:
        rank = self.ranks[index]
        assert rank.laid & ~self._average == 0, "the average holds what it is the average of"
        rank.content |= self._average
        self._tell(Averaged(self.now, index, round, 0, 0, self.costs.copy_s, 8, 0.0))

    def _evaluated(self, index: int, order: Evaluate) -> None:
        self._tell(Evaluated(self.now, index, order.epoch, 1, 0.0, 1.0, self.costs.evaluate_s, order.part))

    def _enter(
        self,
        index: int,
        everyone: Callable[[list[int]], None],
        then: Then,
        broke: Then,
    ) -> None:
        """Go into a collective of the rank's group; without a group it breaks."""
        rank = self.ranks[index]
        rank.busy = True

        def leave(next: Callable[[], None]) -> None:
            if rank.alive:
                rank.busy = False
                next()
                self._act(index)

        if rank.group is None:
            self._after(0.0, leave, broke)
            return
        generation, members = rank.group
        rank.met += 1
        self._collectives.enter(
            (generation, rank.met), members, index, everyone, partial(leave, then), partial(leave, broke)
        )

    def _join(self, index: int, order: Join) -> None:
        rank = self.ranks[index]
        if rank.group is not None:
            self._collectives.tear(rank.group[0])
        rank.group, rank.met = (order.generation, order.members), 0

        rank.joining = order.generation

        def then() -> None:
            rank.joining = -1
            self._tell(Alive(self.now, index))

        def broke() -> None:
            rank.group = None
            then()

        self._enter(index, lambda members: None, then, broke)
        self._after(self.world.deadline_s / 2, self._unjoined, index, order.generation)

    def _unjoined(self, index: int, generation: int) -> None:
        if self.ranks[index].alive and self.ranks[index].joining == generation:
            self._collectives.tear(generation)

    def _beat(self, index: int) -> None:
        if self.ranks[index].alive:
            self._tell(Alive(self.now, index))

    def _meet(self, index: int, order: Average) -> None:
        self._report(index)
        rank, arrived = self.ranks[index], self.now

        def everyone(members: list[int]) -> None:
            assert tuple(members) == order.members
            union = 0
            for member in members:
                union |= self.ranks[member].content
            for member in members:
                self.ranks[member].result = union

        def then() -> None:
            rank.content = rank.result
            brought = self._contribute(index, order.round)
            self._tell(Averaged(self.now, index, order.round, *brought, self.now - arrived, 8, 0.0))

        self._enter(index, everyone, then, lambda: self._broke(index, order.round))

    def _broke(self, index: int, round: int) -> None:
        rank = self.ranks[index]
        self._report(index)
        if rank.group is not None:
            self._collectives.tear(rank.group[0])  # whoever still waits in it is not to wait in vain
        rank.group = None
        rank.machine = rank.machine.broke()
        steps = rank.machine.offset if round == IN_STEP else rank.steps
        self._tell(AverageFailed(self.now, index, round, "a member is gone", steps))

    def _adopted(self, index: int, round: int) -> None:
        rank = self.ranks[index]
        rank.content = rank.result = self._shared[round]
        rank.after = round
        brought = (0, 0) if self._in_step else self._contribute(index, round)
        self._tell(Averaged(self.now, index, round, *brought, self.costs.copy_s, 8, 0.0))


def simulate(policy: Policy, world: World, **options: Any) -> Simulation:
    """Play a run in virtual time; `options` are fields of `Simulation`."""
    return Simulation(policy, world, **options).run()


__all__ = ["Costs", "Simulation", "Trained", "simulate"]
