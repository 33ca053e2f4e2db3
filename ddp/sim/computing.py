"""Steps in virtual time: what a rank computes, on cores of its own or shared ones, and how its time passes.

Does not know what a step is followed by, nor what else ranks do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from ddp.core.messages.events import RankEvent
from ddp.core.settings.world import World
from ddp.core.worker import Step
from ddp.sim.parts import Costs, SimulatedRank
from ddp.sim.shared_cores import SharedCores
from ddp.sim.states import RankStates
from ddp.sim.timeline import EventQueue

Then = Callable[[int, Step, float], None]
"""(rank, step, when it began): called when its computation is over."""


class ComputingRanks(RankStates, ABC):
    """Ranks that do steps."""

    def __init__(self, world: World, costs: Costs, timeline: EventQueue, tell: Callable[[RankEvent], None]) -> None:
        super().__init__(world, costs, timeline, tell)
        self.in_step = False
        """Whether gradients are averaged inside every step."""
        self._cores = SharedCores(costs.cores, timeline) if costs.cores is not None else None

    @abstractmethod
    def act(self, index: int) -> None:
        """Continue with the rank's next action, if it is alive and idle."""

    def step(self, index: int, step: Step, then: Then) -> None:
        """Do a step, and call `then` at its end."""
        if self.costs.between_s and self._cores is None:
            self.spend(index, "", self.costs.between_s, self._compute, step, then)
        else:
            self._compute(index, step, then)

    def spend(self, index: int, kind: str, seconds: float, then: Callable[..., None], *args: Any) -> None:
        """Have a rank spend `seconds` in a slice of `kind` (empty: none); then call `then(index, *args)`, and continue."""
        rank = self.all[index]
        rank.busy = True
        self.turn(index, kind)
        self.timeline.after(seconds, self._spent, rank, index, then, *args)

    def _spent(self, rank: SimulatedRank, index: int, then: Callable[..., None], *args: Any) -> None:
        if rank.until > self.timeline.now:
            self.timeline.at(rank.until, self._spent, rank, index, then, *args)
        elif rank.alive:
            rank.busy = False
            self.turn(index)
            then(index, *args)
            self.act(index)

    def _compute(self, index: int, step: Step, then: Then) -> None:
        rank = self.all[index]
        if self.work is not None and not self.in_step:
            self.work.begin(index, step)
        work, asleep = self._step_s(index, step.batch.samples)
        # A rank reports the time before its step as work.
        if self._cores is None:
            begun = self.timeline.now - self.costs.between_s
            self.spend(index, "forward", self._measured_s(rank, work + asleep), then, step, begun)
            return
        rank.busy = True
        self.turn(index)
        computed = partial(self._computed, rank, index, self.timeline.now, work, asleep, then, step)
        self._cores.run(work + self.costs.beside_s, computed)

    def _step_s(self, index: int, samples: int) -> tuple[float, float]:
        """Return the seconds of work of a step that begins now, and of sleep."""
        rank, costs = self.all[index], self.costs
        if not samples:
            return 0.0, 0.0
        part = samples / self.world.batch if costs.by_samples else 1.0
        work = rank.slow * costs.step_s(index, rank.done) * part
        return work, rank.slow * costs.asleep_s(index, rank.done) * part

    def _measured_s(self, rank: SimulatedRank, took: float) -> float:
        """Note the seconds of a step, and return them with those of waiting for its batch."""
        rank.compute += took
        rank.data += rank.late * took
        return took + rank.late * took

    def _computed(
        self,
        rank: SimulatedRank,
        index: int,
        begun: float,
        work: float,
        asleep: float,
        then: Then,
        step: Step,
    ) -> None:
        """Go on after the work of a step on a shared core. What the rank does before the step passes while it waits."""
        if rank is not self.all[index] or not rank.alive:
            return
        elapsed, own = self.timeline.now - begun, self.costs.between_s + work
        waited = max(elapsed - own, 0.0)
        took = self._measured_s(rank, work + waited + max(asleep - self.costs.absorbed * waited, 0.0))
        left = max(own - elapsed, 0.0) + took - work - waited
        self.spend(index, "forward", left, then, step, begun)
        rank.since = self.timeline.now + left - took
