"""Plays a history of outages against the production coordinator in virtual time. Owns the recovery strategies and the
costs.

`restart` exchanges gradients in every step, stops at every failure and resumes from its last checkpoint. The other
strategies are the policies: they go on without the rank, which joins again when it has a machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from bench.goodput.outages import Outage
from bench.goodput.simulated import SimulatedTimes
from bench.results.analysis.goodput import projections
from bench.results.analysis.rank_seconds import PARTS, repetition
from bench.results.schema_goodput import Goodput
from ddp.core.checkpoint_settings import Checkpointing
from ddp.core.commands import CoordinatorCheckpoint, Publish, Save
from ddp.core.coordinator import Coordinator
from ddp.core.policies import EVERY_STEP, POLICIES, Policy, meets_every_step
from ddp.core.world import World
from ddp.sim import Costs, Simulation

BATCH = 1024
"""Samples of a step; the work of a lost rank is divided among the others in units of samples."""
MOST = 10
"""A run that takes this many times as long as without failures counts as not finished."""
SPREAD = 1009
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


def replay(way: str, costs: ReplayCosts, absences: Sequence[Outage], interval_s: float) -> Replay:
    """Play one recovery strategy, with a checkpoint after every `interval_s` seconds of training, rounded to whole
    steps."""
    name = EVERY_STEP if way == RESTART else way
    in_step = meets_every_step(name)
    lengths = {field.name: costs.window for field in fields(cast(Any, POLICIES[name])) if field.name in LENGTHS}
    policy = POLICIES[name](**lengths)
    unit = costs.step_s if in_step else costs.step_s * costs.window
    every = max(round(interval_s / unit), 1)
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
        checkpoints=Checkpointing(every, "averages", 0.0),
    )
    # A policy that overlaps training and averaging has its snapshots averaged; the others use collectives.
    world = replace(world, blocking=not policy.init(world)[1].overlap)
    play = _restarted if way == RESTART else _elastic
    sums, failures, end, finished = play(policy, world, costs, absences)
    result = projections(repetition(sums))
    assert result is not None
    return Replay(way, failures, end / 3600, finished, every * unit, result)


Played = tuple[dict[str, float], int, float, bool]
"""(seconds by part, number of failures, end, whether it finished)."""


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


def _elastic(policy: Policy, world: World, costs: ReplayCosts, absences: Sequence[Outage]) -> Played:
    """Go on without lost ranks; each joins again when it has a machine and has started."""
    gone: dict[int, float] = {}
    waits: defaultdict[int, list[float]] = defaultdict(list)
    deaths: list[Outage] = []
    for outage in absences:
        if outage.start > gone.get(outage.rank, 0.0):
            deaths.append(outage)
            waits[outage.rank].append(outage.stop - outage.start + costs.start_s)
            # Until then it has not returned, so a failure of its machine is none.
            gone[outage.rank] = outage.stop + costs.start_s + costs.step_s

    def start_s(rank: int, life: int) -> float:
        return waits[rank][min(life, len(waits[rank])) - 1]

    times = SimulatedTimes(world.size)
    blows = tuple((outage.start, outage.rank) for outage in deaths)
    simulation = _simulation(policy, world, costs, times, start_s, costs.horizon_s, deaths=blows)
    finished = True
    try:
        simulation.run()
    except TimeoutError:
        finished = False
    end = min(simulation.now, costs.horizon_s)
    away = [(outage.rank, outage.start, outage.stop) for outage in deaths]
    struck = sum(outage.start < end for outage in deaths)
    return times.seconds(end, away), struck, end, finished and simulation.status == "ok"


def _restarted(policy: Policy, world: World, costs: ReplayCosts, absences: Sequence[Outage]) -> Played:
    """Stop at every failure, wait for the machine, and restart all ranks from the last checkpoint."""
    sums, failures, now = dict.fromkeys(PARTS, 0.0), 0, 0.0
    source: CoordinatorCheckpoint | None = None
    left = list(reversed(absences))
    while now < costs.horizon_s:
        blow = left.pop() if left else None
        after = None if blow is None else (blow.start - now, blow.rank)
        end, source, part, over = _until(policy, world, costs, source, after, costs.horizon_s - now)
        for name, value in part.items():
            sums[name] += value
        now += end
        if over or blow is None or now < blow.start:
            return sums, failures, now, not over
        failures, down = failures + 1, [blow]
        again = blow.stop + costs.restart_s
        while left and left[-1].start < again:
            down.append(left.pop())
            again = max(again, down[-1].stop + costs.restart_s)
        for name, value in _downtime(world.size, down, again - now).items():
            sums[name] += value
        failures, now = failures + len(down) - 1, again
    return sums, failures, now, False


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
    blow: tuple[float, int] | None,
    limit_s: float,
) -> tuple[float, CoordinatorCheckpoint | None, dict[str, float], bool]:
    """Train from a checkpoint to the next failure or the end, for at most `limit_s`. Return (duration, last checkpoint,
    seconds by part, whether the limit was reached)."""
    times, begun = SimulatedTimes(world.size), dict[int, float]()
    saved, last = 0.0, source

    def listen(at: float, record: Any) -> None:
        nonlocal saved, last
        times.listen(at, record)
        if isinstance(record, Save):
            begun.setdefault(record.index, at)
        elif isinstance(record, Publish):
            saved, last = begun[record.index], record.coordinator

    deaths = () if blow is None else (blow,)
    simulation = _simulation(policy, world, costs, times, lambda rank, life: 0.0, limit_s, deaths=deaths)
    simulation.listen = listen
    if source is not None:
        simulation.coordinator = Coordinator.start(policy, world, 0.0, source)
    over = False
    try:
        simulation.run()
    except TimeoutError:
        over = True
    if simulation.status != "ok":
        times.histories.saved = saved
    end = min(simulation.now, limit_s)
    return end, last, times.seconds(end), over
