"""Plays a history of outages against the production coordinator in virtual time. Owns the recovery strategies and the
costs.

`restart` exchanges gradients in every step, stops at every failure and resumes from its last checkpoint. The other
strategies are the policies: they go on without the rank, which joins again when it has a machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple, cast

from bench.base.grouping import grouped
from bench.goodput.outages import Outage
from bench.goodput.simulated import SimulatedTimes
from bench.results.analysis.goodput import projections
from bench.results.analysis.rank_seconds import PARTS, repetition
from bench.results.schema_goodput import Goodput
from ddp.core.coordinator import Coordinator
from ddp.core.messages.commands import CoordinatorCheckpoint, Publish
from ddp.core.messages.events import Saved
from ddp.core.policies import EVERY_STEP, POLICIES, Policy, meets_every_step
from ddp.core.settings.checkpoints import LONGEST_S, Checkpointing
from ddp.core.settings.checkpoints import MOST as RAREST
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation

BATCH = 1024
"""Samples of a step; the work of a lost rank is divided among the others in units of samples."""
MOST = 10
"""A run that takes this many times as long as without failures counts as not finished."""
SPREAD = 1009
BEGUN_S = 0.01
"""Seconds from a start of all ranks until they have their first orders. No rank is lost before, as the others would wait
for it in their first group for ever."""
RESTART = "restart"
LENGTHS = ("anchor", "max_anchor", "base")
"""Settings of policies for the length of a window."""


@dataclass(frozen=True)
class ReplayCosts:
    """What is trained, and the costs of operations in seconds. A rank is a node."""

    ranks: int = 400
    hours: float = 24.0
    """Hours of training without failures and without communication."""
    step_s: float = 20.0
    window: int = 10
    """Steps between two averages, unless every step averages."""
    jitter: float = 0.05
    """Largest relative increase of a step's time."""
    wire_s: float = 0.5
    """Time of a collective."""
    save_s: float = 30.0
    """Time of writing a checkpoint, while all ranks stand still."""
    restart_s: float = 300.0
    """Time of restarting all ranks from a checkpoint."""
    start_s: float = 60.0
    """Time of restarting one rank until it can join."""
    regroup_s: float = 5.0
    """Time of forming a new group."""
    copy_s: float = 0.5
    """Time of copying the state: to a peer, into a snapshot, or an update into a replica."""

    @property
    def rounds(self) -> int:
        """Number of windows in the run."""
        return max(round(self.hours * 3600 / (self.step_s * self.window)), 1)

    @property
    def horizon_s(self) -> float:
        """Seconds after which a run is given up."""
        return MOST * self.rounds * self.step_s * self.window

    def step(self, rank: int, number: int) -> float:
        """Return the seconds of a step with a full batch."""
        return self.step_s * (1 + self.jitter * ((rank * 7919 + number * 104_729) % SPREAD) / SPREAD)

    def wire(self, members: tuple[int, ...], number: int) -> float:
        """Return the seconds of a collective; the first of a group includes forming it."""
        return self.regroup_s if number == 1 and self.regroup_s else self.wire_s


def ways() -> tuple[str, ...]:
    """Return the names of the recovery strategies."""
    return (RESTART, *POLICIES)


@dataclass(frozen=True)
class Replay:
    """The outcome of one recovery strategy."""

    way: str
    failures: int
    """Number of failures."""
    hours: float
    """Duration of the run."""
    finished: bool
    checkpoint_s: float
    """Seconds of training between checkpoints."""
    goodput: Goodput


def replay(
    way: str,
    costs: ReplayCosts,
    absences: Sequence[Outage],
    interval_s: float,
    tell: Callable[[float], None] = lambda seconds: None,
) -> Replay:
    """Play one recovery strategy, with a checkpoint after every `interval_s` seconds of training, rounded to whole
    steps. `tell` gets the virtual time of every record, seconds."""
    name = EVERY_STEP if way == RESTART else way
    in_step = meets_every_step(name)
    lengths = {field.name: costs.window for field in fields(cast(Any, POLICIES[name])) if field.name in LENGTHS}
    policy = POLICIES[name](**lengths)
    unit = costs.step_s if in_step else costs.step_s * costs.window
    interval_s = min(interval_s, LONGEST_S)
    every = min(max(round(interval_s / unit), 1), RAREST)
    saves, checkpoint_s = Checkpointing(every, "averages", 0.0), every * unit
    if not in_step and "anchor" not in lengths:  # windows grow: if they were counted, it would save ever less often
        saves, checkpoint_s = Checkpointing(1, "averages", interval_s), max(interval_s, unit)
    world = World(
        costs.ranks,
        costs.rounds * costs.window * costs.ranks * BATCH,
        BATCH,
        1,
        blocking=True,
        in_step=in_step,
        deadline_s=math.inf,
        tolerate_loss=way != RESTART,
        restarts=0 if way == RESTART else None,
        checkpoints=saves,
    )
    # A policy that overlaps training and averaging has its snapshots averaged; the others use collectives.
    world = replace(world, blocking=not policy.init(world)[1].overlap)
    sums, failures, end, finished = _played(policy, world, costs, absences, way != RESTART, tell)
    result = projections(repetition(sums))
    assert result is not None
    return Replay(way, failures, end / 3600, finished, checkpoint_s, result)


Played = tuple[dict[str, float], int, float, bool]
"""(seconds by part, number of failures, end, whether it finished)."""


class _StretchEnd(StrEnum):
    """How a stretch of training ended."""

    DONE = "done"
    LOST = "lost"
    """Without the ranks that it needs."""
    LATE = "late"
    """At the limit of its time."""


class _TrainedStretch(NamedTuple):
    """Training from a start of all ranks to the next, or to the end."""

    end: float
    """Its seconds."""
    how: _StretchEnd
    source: CoordinatorCheckpoint | None
    """The last checkpoint."""
    seconds: dict[str, float]
    """Seconds of all ranks by part."""


def _simulation(
    policy: Policy,
    world: World,
    costs: ReplayCosts,
    times: SimulatedTimes,
    start_s: Callable[[int, int], float],
    limit_s: float,
    **options: Any,
) -> Simulation:
    prices = Costs(
        costs.step,
        by_samples=world.in_step,
        wire=costs.wire,
        reduce_s=costs.wire_s,
        save_s=costs.save_s,
        copy_s=costs.copy_s,
        start_s=start_s,
        report_s=costs.window * costs.step_s,
    )
    simulation = Simulation(policy, world, prices, keep=False, tick_s=math.inf, limit_s=limit_s, **options)
    simulation.measured, simulation.listen = times.measured, times.listen
    return simulation


def _played(
    policy: Policy,
    world: World,
    costs: ReplayCosts,
    absences: Sequence[Outage],
    elastic: bool,
    tell: Callable[[float], None],
) -> Played:
    """Train until a rank that is needed is lost; then wait for the machines, and restart all ranks from the last
    checkpoint. If `elastic`, one rank suffices, and a lost one joins again when it has a machine and has started."""
    sums, failures, now = dict.fromkeys(PARTS, 0.0), 0, 0.0
    source: CoordinatorCheckpoint | None = None
    left = list(reversed(absences))
    while now < costs.horizon_s:
        ahead = [outage.since(now) for outage in reversed(left if elastic else left[-1:])]
        deaths = _of_returned(ahead, costs) if elastic else ahead
        stretch = _until(policy, world, costs, source, deaths, (now, costs.horizon_s), tell)
        struck = [outage for outage in deaths if outage.start <= stretch.end]
        failures, now, source = failures + len(struck), now + stretch.end, stretch.source
        _add(sums, stretch.seconds)
        if stretch.how != _StretchEnd.LOST:
            return sums, failures, now, stretch.how == _StretchEnd.DONE
        del left[len(left) - sum(outage.start <= stretch.end for outage in ahead) :]
        down = [Outage(now, now + more, each.rank) for each in struck if (more := each.stop - stretch.end) > 0]
        again = max((outage.stop for outage in down), default=now) + costs.restart_s
        while left and left[-1].start < again:
            failures += 1
            down.append(left.pop())
            again = max(again, down[-1].stop + costs.restart_s)
        _add(sums, _downtime(world.size, down, again - now))
        now = again
    return sums, failures, now, False


def _add(sums: dict[str, float], seconds: dict[str, float]) -> None:
    for name, value in seconds.items():
        sums[name] += value


def _of_returned(absences: Sequence[Outage], costs: ReplayCosts) -> list[Outage]:
    """Return those absences that strike a rank which has returned from the one before."""
    gone: dict[int, float] = {}
    deaths: list[Outage] = []
    for outage in absences:
        if outage.start > gone.get(outage.rank, -1.0):
            deaths.append(outage)
            gone[outage.rank] = outage.stop + costs.start_s + costs.step_s
    return deaths


def _downtime(ranks: int, down: Sequence[Outage], seconds: float) -> dict[str, float]:
    """Return the ranks' seconds by part until the job is back: ranks with a machine wait, then all start."""
    absent, waiting, reached = 0.0, 0.0, 0.0
    for outage in down:
        absent += outage.stop - outage.start
        waiting += max(outage.stop - max(outage.start, reached), 0.0)
        reached = max(reached, outage.stop)
    return {"absent": absent, "regrouping": ranks * waiting - absent, "starting": ranks * (seconds - waiting)}


def _until(
    policy: Policy,
    world: World,
    costs: ReplayCosts,
    source: CoordinatorCheckpoint | None,
    deaths: Sequence[Outage],
    within: tuple[float, float],
    tell: Callable[[float], None],
) -> _TrainedStretch:
    """Train from a checkpoint to the loss of a rank that is needed, or to the end, `within` two times of the run."""
    limit_s = within[1] - within[0]
    times, written = SimulatedTimes(world.size), dict[int, float]()
    saved, last = 0.0, source
    waits = grouped((outage.rank, outage.stop - outage.start + costs.start_s) for outage in deaths)

    def listen(at: float, record: Any) -> None:
        nonlocal saved, last
        tell(within[0] + at)
        times.listen(at, record)
        if isinstance(record, Saved):  # the order comes with the grant of the window that ends there
            written.setdefault(record.index, at)
        elif isinstance(record, Publish):
            saved, last = written[record.index], record.coordinator

    def start_s(rank: int, life: int) -> float:
        return waits[rank][min(life, len(waits[rank])) - 1]

    blows = tuple((max(outage.start, BEGUN_S), outage.rank) for outage in deaths)
    simulation = _simulation(policy, world, costs, times, start_s, limit_s, deaths=blows)
    simulation.listen = listen
    if source is not None:
        simulation.coordinator = Coordinator.start(policy, world, 0.0, source)
    how = _StretchEnd.DONE
    try:
        simulation.run()
    except TimeoutError:
        how = _StretchEnd.LATE
    if simulation.status != "ok":
        how, times.histories.saved = _StretchEnd.LOST, saved
    end = min(simulation.now, limit_s)
    away = [(outage.rank, outage.start, outage.stop) for outage in deaths]
    return _TrainedStretch(end, how, last, times.seconds(end, away))
