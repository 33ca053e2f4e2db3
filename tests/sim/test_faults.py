"""Random schedules with faults, every law checked at every event: no sample lost or trained twice, whoever is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ddp.core.messages.commands import Abort, Average, Drop, Evaluate, Join
from ddp.core.messages.events import Failed, Progress, RoundClosed
from ddp.core.messages.join_events import Joined
from ddp.core.policies import POLICIES
from ddp.core.policies.asynchronous import Async
from ddp.core.settings.faults import KINDS, Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.sim.invariants import Invariants
from tests.sim.strategies import (
    CAMPAIGN,
    FATAL,
    costs,
    examples,
    policies,
    scripts,
    second_blows,
    small_worlds,
    suited,
    worlds,
)
from tests.sim.test_laws import covered_once

# Hundreds of schedules each, on machines that others may use; a campaign takes what it takes.
pytestmark = pytest.mark.timeout(0 if CAMPAIGN else 900)

Blow = tuple[int, type, int, float] | None


class Moment(Invariants):
    """Checks the laws, and has a rank die at the moment of an order."""

    def __init__(self, blow: Blow) -> None:
        super().__init__()
        self.blow = blow
        self.killed: set[int] = set()

    def __call__(self, played: Simulation) -> None:
        new = played.records[self.read :]
        super().__call__(played)
        if self.blow is None:
            return
        rank, kind, left, delay = self.blow
        for _, record in new:
            if isinstance(record, kind) and rank in (getattr(record, "rank", rank), -1):
                if not left:
                    played.kill(rank, delay)
                    self.killed.add(rank)
                    self.blow = None
                    return
                left -= 1
        self.blow = (rank, kind, left, delay)


def play(
    policy: Any,
    world: World,
    cost: Costs,
    script: tuple[Fault, ...],
    blow: Blow,
    torn: int,
    offers: tuple[float, ...] = (),
) -> Counter[str]:
    """Play it and check all that must hold of it, at every event and in the end; the faults that came to pass, by kind."""
    watch = Moment(blow)
    # All work done by one rank at its slowest, every batch for itself, and a few deadlines for every loss.
    steps = world.epochs * (world.steps + 1) * world.size
    slowest = max(cost.step_s(rank, step) for rank in range(world.size) for step in range(3)) * 4 * 4
    limit = steps * (slowest + 1.0) + 4 * world.deadline_s * (1 + 2 * len(script))
    played = Simulation(
        policy,
        world,
        cost,
        faults=script,
        torn=lambda rank: bool(torn >> rank & 1),
        watch=watch,
        limit_s=limit,
        offers=offers,
    ).run()
    struck = Counter(fault.kind for _, fault in played.struck) + Counter(second=len(watch.killed))
    twins = same_errors(played)
    if played.status != "ok":
        assert [met for met, _ in twins[-1:]] == [False], [r for _, r in played.records if isinstance(r, (Abort, Drop))]
        return struck
    assert all(meeting for _, meeting in twins), "two that raise the same before the others have met end the run"
    covered_once(played)
    doomed = {fault.rank for _, fault in played.struck if fault.kind in FATAL} | watch.killed
    lost = {rank for rank, state in enumerate(played.coordinator.cohort.ranks) if not state.alive}
    late = set(range(world.size - world.absent, world.size))
    away = set(late)
    for _, record in played.records:
        if isinstance(record, Drop):
            away.add(record.rank)
        elif isinstance(record, Joined):
            away.remove(record.rank)
            struck["new" if record.rank in late else "back"] += 1
            late.discard(record.rank)
    assert lost <= doomed | late, "no rank is given up while it works, however slow"
    assert lost == away, "the lost are named"
    return struck


def same_errors(played: Simulation) -> list[tuple[bool, bool]]:
    """Of each rank that raises after another did: whether the others have met since, in a meeting that was called after
    the first loss; and whether in any."""
    found: list[tuple[bool, bool]] = []
    lost: set[int] = set()
    raised = called = whole = any_met = False
    plan = played.coordinator.plan
    inside = plan is not None and plan.in_step  # there, whoever steps in a new group has met the others
    opened: set[int] = set()
    for _, record in played.records:
        match record:
            case Failed() if record.rank not in lost:
                found += [(whole, any_met)] if raised else []
                raised, called, whole, any_met = True, False, False, False
                opened.clear()
            case Average() if raised:
                opened.add(record.round)
            case RoundClosed() if raised:
                any_met, whole = True, whole or record.round in opened
            case Join() if raised:
                called = True
            case Progress() if raised and called and inside:
                any_met = whole = True
            case Drop():
                lost.add(record.rank)
    return found


def campaign(data: st.DataObject, policy: Any, world: World, cost: Costs, come: bool = False) -> None:
    """One schedule; one in which no fault came to pass does not count. `come`: ranks that were never there come, too."""
    policy = suited(policy, world)
    script = data.draw(scripts(world, in_turn=world.blocking and not world.in_step and not isinstance(policy, Async)))
    blow = data.draw(second_blows(world, script))
    offers: tuple[float, ...] = ()
    if come:
        doomed = {fault.rank for fault in script if fault.kind in FATAL} | ({blow[0]} if blow else set())
        stays = min(set(range(world.size)) - doomed)
        absent, spares = data.draw(st.integers(0, world.size - 1 - stays)), data.draw(st.integers(0, 2))
        world = replace(world, absent=absent, spares=spares)
        offers = tuple(sorted(data.draw(st.lists(st.floats(0.0, 1.5), max_size=4))))
    struck = play(policy, world, cost, script, blow, data.draw(st.integers(0, 2**world.size - 1)), offers)
    assume(struck)
    STRUCK.update(struck, schedules=1)


EACH = 1120 if CAMPAIGN else 162
"""Schedules of each of the 18 kinds below: in a campaign over 20,000 in all; else the same ones every time, which with the
long runs are 3,016."""
STRUCK: Counter[str] = Counter()
"""Schedules played, and faults of each kind that came to pass in them."""
SLOW = [HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("backend", ["snapshots", "collectives", "in_step"])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_faults_lose_no_sample_and_break_no_law(name: str, backend: str) -> None:
    fixed = {"blocking": backend != "snapshots", "in_step": backend == "in_step"}

    @settings(max_examples=EACH, deadline=None, suppress_health_check=SLOW)
    @given(policies(name), small_worlds(**fixed), costs(), st.data())
    def schedules(policy: Any, world: World, cost: Costs, data: st.DataObject) -> None:
        campaign(data, policy, world, cost)

    before = STRUCK.copy()
    schedules()
    struck = STRUCK - before
    assert struck["schedules"] >= EACH
    # Each kind comes to pass in one schedule of twenty at least on average, so that chance brings none below half of that.
    assert all(struck[kind] >= EACH // 40 for kind in (*KINDS, "second")), f"faults of all kinds came to pass: {struck}"


@pytest.mark.parametrize("backend", ["snapshots", "collectives", "in_step"])
def test_ranks_come_back_and_no_law_is_broken(backend: str) -> None:
    """Several deaths, stalls and lost messages, and every rank that is lost is started again, in its own time."""
    fixed = {"blocking": backend != "snapshots", "in_step": backend == "in_step"}

    @settings(max_examples=EACH, deadline=None, suppress_health_check=SLOW)
    @given(policies(), small_worlds(**fixed, restarts=None), costs(), st.data())
    def schedules(policy: Any, world: World, cost: Costs, data: st.DataObject) -> None:
        campaign(data, policy, world, cost)

    before = STRUCK.copy()
    schedules()
    assert (STRUCK - before)["back"] >= EACH // 4, "ranks came back"


@pytest.mark.parametrize("backend", ["snapshots", "collectives", "in_step"])
def test_new_ranks_come_and_spares_wait_and_no_law_is_broken(backend: str) -> None:
    """Ranks that were never there come at any time, several at once; a spare takes the place of the next that is lost; and
    whoever is lost is started again, or nobody is."""
    fixed = {"blocking": backend != "snapshots", "in_step": backend == "in_step"}

    @settings(max_examples=EACH, deadline=None, suppress_health_check=SLOW)
    @given(policies(), st.data(), costs())
    def schedules(policy: Any, data: st.DataObject, cost: Costs) -> None:
        world = data.draw(small_worlds(**fixed, restarts=data.draw(st.sampled_from([0, 1, None]))))
        campaign(data, policy, world, cost, come=True)

    before = STRUCK.copy()
    schedules()
    assert all((STRUCK - before)[what] >= EACH // 20 for what in ("new", "back")), "ranks came, and came back"


@settings(max_examples=examples(300), deadline=None, suppress_health_check=SLOW)
@given(policies(), worlds(tolerate_loss=True), costs(), st.data())
def test_faults_in_long_runs(policy: Any, world: World, cost: Costs, data: st.DataObject) -> None:
    campaign(data, policy, world, cost)


@pytest.mark.parametrize("part", [0.5, 0.7, 0.95])
def test_long_steps_are_not_taken_for_silence_where_another_stands_still(part: float) -> None:
    """A rank came into the collective with its step behind it and said nothing for a while more: all were given up."""
    world = World(3, 20, 1, 1, blocking=True, in_step=True, deadline_s=5.0, tolerate_loss=True)
    long = Costs(lambda rank, step: part * world.deadline_s)
    for step in range(3):
        play(POLICIES["sync"](), world, long, (Fault(2, step, "stall"),), None, 0)


def test_a_rank_that_is_ordered_something_as_another_is_given_up_is_not_given_up_with_it() -> None:
    """It had waited, with nothing to do, for as long as the other was silent: it counted as silent in the same moment."""
    world = World(4, 34, 2, 2, blocking=True, in_step=True, deadline_s=5.0, tolerate_loss=True)
    costs = Costs(
        lambda rank, step: (0.02, 0.01, 0.01, 0.02)[rank], latency_s=0.05, wire_s=0.1, reduce_s=0.0, copy_s=0.001
    )
    script = (Fault(1, 6, "raise"), Fault(0, 7, "stall"), Fault(3, 1, "slow"))
    policy = POLICIES["cadence"](anchor=9, max_batch_diff=8, partition_ratios=(1.0,) * 4, dispatch="partition")
    struck = play(policy, world, replace(costs, report_s=0.02), script, (3, Evaluate, 0, 0.11), 10)
    assert struck == {"raise": 1, "stall": 1, "slow": 1, "second": 1}


TWICE = (Fault(2, 3, "lose"), Fault(2, 3, "lose"))


@pytest.mark.parametrize("samples", [60, 120])
def test_what_a_silent_rank_brought_into_an_average_in_turn_is_counted(samples: int) -> None:
    """Its report of the window's last step and its answer to the round were lost: what it had not reported was trained
    again by others, or its epoch was closed without it."""
    world = World(3, samples, 5, 1, blocking=True, in_step=False, deadline_s=5.0, tolerate_loss=True)
    long = Costs(lambda rank, step: 0.1 + 0.01 * rank, latency_s=0.001, report_s=1.0)
    assert play(POLICIES["cadence"](anchor=4, max_anchor=4), world, long, TWICE, None, 0) == {"lose": 2}


def test_a_lost_report_of_the_last_rank_is_noticed_when_another_comes_back() -> None:
    """Nobody compared what it had done, and the two trained a batch of it again."""
    world = World(2, 40, 4, 1, blocking=True, in_step=True, deadline_s=5.0, tolerate_loss=True, restarts=1)
    cost = Costs(lambda rank, step: 0.1, latency_s=0.001, start_s=lambda rank, life: 2.0)
    faults = (Fault(0, 3, "lose"), Fault(1, 1, "crash"))
    played = Simulation(POLICIES["sync"](), world, cost, faults=faults, limit_s=60.0).run()
    assert played.aborted is not None
    assert "steps, 3 were reported" in played.aborted.reason
