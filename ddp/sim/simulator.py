"""Runs the coordinator and workers of `ddp.core` in virtual time, with given costs and faults.

Owns the run as a whole: the coordinator's side, message latency, the records. Makes no decision that the core makes, as the
same state machines run in production. A simulated run leaves the same records as a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddp.core.coordinator import Coordinator, Output
from ddp.core.messages.commands import ORDERS, Abort, Apply, Drop, Reduce, Restart
from ddp.core.messages.events import Event, Lost, Merged, RankEvent, Ready, Reduced, Snapshot, Tick
from ddp.core.messages.join_events import Offered
from ddp.core.network.link_costs import FROM, TO, Deliveries
from ddp.core.policies import Policy
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.core.values.frozen import replace
from ddp.sim.parts import Costs, TrainedBatch
from ddp.sim.ranks import SimulatedRanks
from ddp.sim.states import Measured
from ddp.sim.timeline import EventQueue
from ddp.sim.work import RankWork


def _never(rank: int) -> bool:
    return False


@dataclass
class Simulation:
    """A run in virtual time and its results."""

    policy: Policy
    world: World
    costs: Costs = field(default_factory=Costs)
    deaths: tuple[tuple[float, int], ...] = ()
    """(time, rank): the rank's process ends then, and this is noticed."""
    stalls: tuple[tuple[float, int], ...] = ()
    """(time, rank): the rank does and says nothing from then on, which shows only by its silence."""
    offers: tuple[float, ...] = ()
    """Times at which a process is offered for one more rank."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject."""
    torn: Callable[[int], bool] = _never
    """rank -> whether a running collective breaks on it when another member dies."""
    watch: Callable[[Simulation], None] | None = None
    """Called after every event of the coordinator."""
    tick_s: float = 0.5
    limit_s: float = 1e6
    keep: bool = True
    """Whether to keep every record, every step, and which steps are in each replica (their number grows with ranks x
    steps); else keep only the present state, and count `events`."""
    measured: Measured | None = None
    """Called with every time slice that ranks measure."""
    began: Callable[[int, str], None] | None = None
    """Called with rank and kind when such a slice begins."""
    listen: Callable[[float, Event | Output], None] | None = None
    """Called with every record, whether it is kept or not."""
    work: RankWork | None = None
    """Training for real, without faults; None: ranks only report success."""
    status: str = "ok"
    aborted: Abort | None = None
    """The order that ended the run early."""
    events: int = 0
    """Number of events that the coordinator has seen."""
    records: list[tuple[float, Event | Output]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._timeline = EventQueue()
        self._deliveries = Deliveries(self.costs.links) if self.costs.links is not None else None
        self._alike = self.costs.lag_s is None and self._deliveries is None
        """Whether messages of all ranks take equally long."""
        self._crew = SimulatedRanks(
            self.world, self.costs, self._timeline, self._send, self._gone, self.faults, self.torn
        )
        self._crew.keep = self.keep
        self.ranks = self._crew.all
        self.trained: list[TrainedBatch] = self._crew.trained
        """All steps of all ranks, in the order of their ends."""
        self.weights = self._crew.weights
        """(round, rank -> samples that it contributed), as the ranks know it."""
        self.dropped = self._crew.dropped
        """(time, message) of the lost messages."""
        self.struck = self._crew.struck
        """(time, fault) of the faults that were injected; others were for steps that were never trained."""
        self.coordinator = Coordinator.start(self.policy, self.world, at=0.0)

    @property
    def now(self) -> float:
        """The virtual seconds since the start."""
        return self._timeline.now

    def run(self) -> Simulation:
        """Run to the end. Raises TimeoutError if the time limit passes: a deadlock or a livelock."""
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
            self._crew.turn(rank)  # the slice that it was in
        if not self.coordinator.over:
            raise TimeoutError(f"nothing happens after {self.now} s: {self.coordinator.cohort}")
        return self

    def kill(self, rank: int, delay: float) -> None:
        """Make `rank` die `delay` seconds from now. For a `watch` that waits for its moment."""
        self._timeline.after(delay, self._crew.die, rank)

    def befall(self, rank: int, kind: str, value: float = 0.0) -> None:
        """Call `SimulatedRanks.befall` for `rank` now; before the run, this happens before the rank is ready."""
        self._crew.befall(rank, kind, value)

    def later(self, delay: float, happen: Callable[..., None], *args: Any) -> None:
        """Call `happen(*args)` `delay` seconds from now."""
        self._timeline.after(delay, happen, *args)

    def _send(self, event: RankEvent) -> None:
        size = self.costs.bytes if type(event) is Snapshot else 0
        message = event, self._crew.all[event.rank].life
        due = self._timeline.now + self.costs.latency_s if self._alike else self._arrival(event.rank, size, TO)
        self._timeline.gather(due, self._arrive, message)

    def _arrival(self, rank: int, size: int, way: int) -> float:
        """Return the arrival time of a message sent now."""
        costs, now = self.costs, self._timeline.now
        least = now + (costs.latency_s if costs.lag_s is None else costs.latency_s + costs.lag_s(rank))
        return least if self._deliveries is None else max(least, self._deliveries.due(rank, size, way, now))

    def _gone(self, rank: int) -> None:
        event, life = Lost(0.0, rank, "killed by the script"), self._crew.all[rank].life
        noticed = max(self._arrival(rank, 0, TO), self.now + self.costs.notice_s)
        self._timeline.gather(noticed, self._arrive, (event, life))

    def _arrive(self, messages: list[tuple[RankEvent | Lost, int]]) -> None:
        """Pass the coordinator events of ranks that arrive together, each with the rank's number of restarts when it was
        sent: if it was restarted since, the event is dropped."""
        restarts = self.world.restarts != 0 or self.world.spares or self.offers
        if self.watch is None and not restarts:
            self._coordinate_all([event for event, _ in messages])
            return
        for event, life in messages:
            if self._crew.all[event.rank].life == life and not self.coordinator.over:
                self._coordinate(event)

    def _coordinate_all(self, messages: list[RankEvent | Lost]) -> None:
        """Pass the coordinator events that arrive together; those that need no decision are entered at once."""
        now, place = self._timeline.now, 0
        messages = [replace(event, at=now) for event in messages]
        while place < len(messages) and not self.coordinator.over:
            self.coordinator, count = self.coordinator.enter(messages, place)
            self.events += count
            for event in messages[place : place + count] if self.keep or self.listen is not None else ():
                self._record(event)
            place += count + 1
            if place <= len(messages):
                self._decide(messages[place - 1], self.coordinator.decide)

    def _coordinate(self, event: Event) -> None:
        """Pass the coordinator an event at its arrival."""
        self._decide(replace(event, at=self._timeline.now), self.coordinator.update)

    def _decide(self, event: Event, decide: Callable[[Event], tuple[Coordinator, tuple[Output, ...]]]) -> None:
        """Have the coordinator react to an event, and do what it says."""
        self.events += 1
        self._record(event)
        self.coordinator, outputs = decide(event)
        plan = self.coordinator.plan
        self._crew.in_step = plan is not None and plan.in_step
        records, orders = self.keep or self.listen is not None, list[Any]()
        for output in outputs:
            if records:
                self._record(output)
            if type(output) in ORDERS:
                orders.append(output)
            elif type(output) is not Merged:
                self._order(orders)
                orders = []
                self._execute(output)
        self._order(orders)
        self._timeline.over = self.coordinator.over
        if self.watch is not None:
            self.watch(self)

    def _execute(self, output: Output) -> None:
        """Do what the runtime does with an output that is no order to a rank."""
        match output:
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
                if self._deliveries is not None:
                    self._deliveries.forget(output.rank)
                self._crew.restart(output.rank, output.life)

    def _order(self, orders: list[Any]) -> None:
        """Send ranks orders."""
        ranks, happen = self._crew.all, self._crew.deliver
        if orders and self._alike:
            items = [(order, ranks[order.rank].life) for order in orders]
            self._timeline.gather(self._timeline.now + self.costs.latency_s, happen, *items)
            return
        for order in orders:
            size = self.costs.bytes if type(order) is Apply else 0
            self._timeline.gather(self._arrival(order.rank, size, FROM), happen, (order, ranks[order.rank].life))

    def _record(self, record: Event | Output) -> None:
        if self.keep:
            self.records.append((self.now, record))
        if self.listen is not None:
            self.listen(self.now, record)

    def _tick(self) -> None:
        self._coordinate(Tick(0.0))
        self._timeline.after(self.tick_s, self._tick)


def simulate(policy: Policy, world: World, **options: Any) -> Simulation:
    """Run a simulation; `options` are fields of `Simulation`."""
    return Simulation(policy, world, **options).run()


__all__ = ["Costs", "Simulation", "TrainedBatch", "simulate"]
