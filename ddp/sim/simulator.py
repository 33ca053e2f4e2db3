"""Plays coordinator and workers of `ddp.core` in virtual time, with costs and faults given from outside.

Owns the run as a whole: the coordinator's side, message latency, the records. Decides nothing that the core decides: the
same state machines run in production. A simulated run leaves the same records as a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp.core.commands import ORDERS, Abort, Apply, Drop, Reduce, Restart
from ddp.core.coordinator import Coordinator, Output
from ddp.core.events import Event, Lost, RankEvent, Ready, Reduced, Snapshot, Tick
from ddp.core.faults import Fault
from ddp.core.join_events import Offered
from ddp.core.link_costs import FROM, TO, Deliveries
from ddp.core.policies import Policy
from ddp.core.world import World
from ddp.sim.parts import Costs, TrainedBatch
from ddp.sim.ranks import SimulatedRanks
from ddp.sim.states import Measured
from ddp.sim.timeline import EventQueue
from ddp.sim.work import RankWork


def _never(rank: int) -> bool:
    return False


_set = object.__setattr__  # a message has its time once it arrives: until then nobody else has it


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
    offers: tuple[float, ...] = ()
    """When somebody offers a process for one more rank."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong at which step of which rank."""
    torn: Callable[[int], bool] = _never
    """rank -> whether a collective that is on the wire while another member dies breaks on it."""
    watch: Callable[[Simulation], None] | None = None
    """Called after every event that the coordinator has seen."""
    tick_s: float = 0.5
    limit_s: float = 1e6
    keep: bool = True
    """Keep every record, every step and which steps are in each replica, which grows with ranks times steps; else
    nothing but the state of now, and `events` counts."""
    measured: Measured | None = None
    """Called with every slice of a rank's time: what ranks measure of themselves."""
    began: Callable[[int, str], None] | None = None
    """Called with rank and kind when such a slice begins."""
    listen: Callable[[float, Event | Output], None] | None = None
    """Called with every record, whether it is kept or not."""
    work: RankWork | None = None
    """What ranks really do; None: nothing, they report that all went well. Without faults."""
    status: str = "ok"
    aborted: Abort | None = None
    """What ended it before its end."""
    events: int = 0
    """Events that the coordinator has seen."""
    records: list[tuple[float, Event | Output]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._timeline = EventQueue()
        self._deliveries = Deliveries(self.costs.links) if self.costs.links is not None else None
        self._crew = SimulatedRanks(
            self.world, self.costs, self._timeline, self._send, self._gone, self.faults, self.torn
        )
        self._crew.keep = self.keep
        self.ranks = self._crew.all
        self.trained: list[TrainedBatch] = self._crew.trained
        """All steps of all ranks, in the order of their ends."""
        self.weights = self._crew.weights
        """(round, samples that each rank brought in), as the ranks know it."""
        self.dropped = self._crew.dropped
        """(time, message) of those that were lost."""
        self.struck = self._crew.struck
        """(time, fault): those of `faults` that came to pass; the others were for steps that were never taken."""
        self.coordinator = Coordinator.start(self.policy, self.world, at=0.0)

    @property
    def now(self) -> float:
        """The virtual seconds since the start."""
        return self._timeline.now

    def run(self) -> Simulation:
        """Play to the end. Raises TimeoutError if the virtual time limit passes: a deadlock or a livelock."""
        self._crew.measured, self._crew.began, self._crew.work = self.measured, self.began, self.work
        for rank in range(self.world.size - self.world.absent):
            about = "same", "virtual", "virtual"
            ready: Sequence[RankEvent] = (Ready(0.0, rank, self.world.samples, 1, *about, least=self.world.least),)
            ready = ready if self.work is None else self.work.ready(rank)
            if self.ranks[rank].until > 0:
                self._timeline.at(self.ranks[rank].until, self._crew.say, rank, ready)
            else:
                self._crew.say(rank, ready)
        for at, rank in self.deaths:
            self._timeline.at(at, self._crew.die, rank)
        for at, rank in self.stalls:
            self._timeline.at(at, self._crew.stall, rank)
        for at in self.offers:
            self._timeline.at(at, self._coordinate, Offered(0.0))
        self._tick()
        self._timeline.run(self.limit_s)
        for rank in range(self.world.size):
            self._crew.turn(rank)  # what it was in the middle of
        if not self.coordinator.over:
            raise TimeoutError(f"nothing happens after {self.now} s: {self.coordinator.cohort}")
        return self

    def kill(self, rank: int, delay: float) -> None:
        """Have `rank` die `delay` seconds from now; for a `watch` that waits for its moment."""
        self._timeline.after(delay, self._crew.die, rank)

    def befall(self, rank: int, kind: str, value: float = 0.0) -> None:
        """Have `SimulatedRanks.befall` happen to `rank` now; before the run: before it is ready."""
        self._crew.befall(rank, kind, value)

    def later(self, delay: float, happen: Callable[..., None], *args: Any) -> None:
        """Have `happen(*args)` called `delay` seconds from now."""
        self._timeline.after(delay, happen, *args)

    def _send(self, event: RankEvent) -> None:
        size = self.costs.bytes if type(event) is Snapshot else 0
        life = self._crew.all[event.rank].life
        self._timeline.at(self._arrival(event.rank, size, TO), self._arrive, event, life)

    def _arrival(self, rank: int, size: int, way: int) -> float:
        """Return when a message arrives that is sent now."""
        costs = self.costs
        least = self.now + (costs.latency_s if costs.lag_s is None else costs.latency_s + costs.lag_s(rank))
        return least if self._deliveries is None else max(least, self._deliveries.due(rank, size, way, self.now))

    def _gone(self, rank: int) -> None:
        event, life = Lost(0.0, rank, "killed by the script"), self._crew.all[rank].life
        noticed = max(self._arrival(rank, 0, TO), self.now + self.costs.notice_s)
        self._timeline.at(noticed, self._arrive, event, life)

    def _arrive(self, event: RankEvent | Lost, life: int) -> None:
        """Show the coordinator what a rank said, with what others said that arrives now; nothing of one whose channel was
        closed since, as it was started again."""
        if self.watch is None and self.world.restarts == 0:
            self._coordinate_all([event, *[other for other, _ in self._timeline.same(self._arrive)]])
        elif self._crew.all[event.rank].life == life:
            self._coordinate(event)

    def _coordinate_all(self, messages: list[RankEvent | Lost]) -> None:
        """Show it events that arrive together: what nothing follows from is entered at once."""
        now, place = self._timeline.now, 0
        for event in messages:
            _set(event, "at", now)
        while place < len(messages) and not self.coordinator.over:
            self.coordinator, count = self.coordinator.enter(messages, place)
            if count:
                self.events += count
                for event in messages[place : place + count] if self.keep or self.listen is not None else ():
                    self._record(event)
                place += count
            else:
                self._coordinate(messages[place])
                place += 1

    def _coordinate(self, event: Event) -> None:
        """Show the coordinator an event, at the time at which it arrives."""
        _set(event, "at", self._timeline.now)
        self.events += 1
        self._record(event)
        self.coordinator, outputs = self.coordinator.update(event)
        plan = self.coordinator.plan
        self._crew.in_step = plan is not None and plan.in_step
        records = self.keep or self.listen is not None
        for output in outputs:
            if records:
                self._record(output)
            match output:
                case _ if type(output) in ORDERS:
                    self._order(output)
                case Reduce():
                    self._crew.reduce(output.members)
                    size = self.costs.bytes if self.work is None else self.work.reduce(output)
                    reduced = Reduced(0.0, output.round, self.costs.reduce_s, size)
                    self._timeline.after(self.costs.reduce_s, self._coordinate, reduced)
                case Abort():
                    self.status, self.aborted = output.status, output
                case Drop():
                    self._crew.end(output.rank)
                case Restart():
                    self._crew.restart(output.rank, output.life)
        self._timeline.over = self.coordinator.over
        if self.watch is not None:
            self.watch(self)

    def _order(self, order: Any) -> None:
        """Send a rank an order."""
        size, life = self.costs.bytes if type(order) is Apply else 0, self._crew.all[order.rank].life
        self._timeline.at(self._arrival(order.rank, size, FROM), self._crew.deliver, order, life)

    def _record(self, record: Event | Output) -> None:
        if self.keep:
            self.records.append((self.now, record))
        if self.listen is not None:
            self.listen(self.now, record)

    def _tick(self) -> None:
        self._coordinate(Tick(0.0))
        self._timeline.after(self.tick_s, self._tick)


def simulate(policy: Policy, world: World, **options: Any) -> Simulation:
    """Play a run in virtual time; `options` are fields of `Simulation`."""
    return Simulation(policy, world, **options).run()


__all__ = ["Costs", "Simulation", "TrainedBatch", "simulate"]
