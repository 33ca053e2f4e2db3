"""Every second of every rank is in one part, whatever happens: of simulated schedules, of real ranks, of synthetic runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.goodput.simulated import SimulatedTimes
from bench.results.analysis.goodput import projections
from bench.results.analysis.histories import Histories, Move, Regrouping
from bench.results.analysis.rank_seconds import PARTS, rank_seconds, repetition
from ddp.core.messages.commands import Drop, Join, Restart, SendState
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.bench.streams import MODES, make_metrics, make_spec
from tests.sim.strategies import costs, policies, scripts, small_worlds, suited
from tests.slow import slow


def divided(simulation: Simulation) -> tuple[dict[str, float], SimulatedTimes]:
    """Play it; the seconds of its ranks by part."""
    times = SimulatedTimes(simulation.world.size)
    simulation.measured, simulation.listen = times.measured, times.listen
    simulation.run()
    return repetition(times.seconds(simulation.now)), times


@pytest.mark.parametrize("backend", ["snapshots", *slow("collectives"), "in_step"])
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_second_is_lost_or_counted_twice(backend: str, data: Any) -> None:
    """With deaths, stalls, lost messages, ranks that come back."""
    blocking, in_step = backend != "snapshots", backend == "in_step"
    world = data.draw(small_worlds(blocking, in_step, data.draw(st.sampled_from([0, None]))))
    cost, policy, script = data.draw(costs()), suited(data.draw(policies()), world), data.draw(scripts(world))
    simulation = Simulation(policy, world, cost, faults=script, keep=False)
    sums, times = divided(simulation)
    assert set(sums) == set(PARTS)
    assert min(sums.values()) >= 0
    assert sum(sums.values()) == pytest.approx(world.size * simulation.now)
    trained = times.slices().kind == "forward"
    spent = (times.slices().stop - times.slices().start)[trained].sum()
    assert sums["kept"] + sums["repeated"] + sums["discarded"] <= spent + 1e-9
    goodput = projections(sums)
    assert goodput is not None
    assert 0 <= goodput.ucf <= goodput.ettr <= 1
    assert goodput.goodput <= 1


def test_a_run_without_faults_throws_nothing_away() -> None:
    world = World(3, 240, 4, 2, blocking=True, in_step=True)
    sums, _ = divided(Simulation(POLICIES["sync"](), world, Costs(wire_s=0.25), keep=False))
    assert sums["communicating"] == pytest.approx(3 * 40 * 0.25)
    assert sums["kept"] == pytest.approx(3 * 40 * 1.0)
    lost = ("repeated", "discarded", "detecting", "regrouping", "restoring", "absent")
    assert [sums[part] for part in lost] == [0.0] * len(lost)


@pytest.mark.parametrize("name", ["sync", "cadence"])
def test_a_death_costs_what_it_costs(name: str) -> None:
    """A rank dies half a second into a step of one second, and takes 7 s to come back."""
    in_step = name == "sync"
    world = World(2, 400, 4, 1, blocking=True, in_step=in_step, deadline_s=60.0, tolerate_loss=True, restarts=None)
    settings = {} if in_step else {"anchor": 5, "max_anchor": 5}
    cost = Costs(wire_s=0.0, latency_s=0.0, start_s=lambda rank, life: 7.0)
    sums, _ = divided(Simulation(POLICIES[name](**settings), world, cost, deaths=((12.5, 1),), keep=False))
    assert sums["starting"] == pytest.approx(7.0)
    # Inside steps its half step and the whole one of the other; else what it trained since the last average.
    assert sums["discarded"] == pytest.approx(1.5 if in_step else 2.5)
    assert sums["repeated"] == pytest.approx(sums["discarded"])
    assert sums["absent"] == 0


@pytest.mark.parametrize("name", ["sync", "cadence"])
def test_what_a_killed_rank_reported_it_has_trained(name: str) -> None:
    """A process that is killed has not written its last slices. This training counted as time in which the loss was not
    noticed, about half a point of a run of seconds."""
    in_step = name == "sync"
    world = World(2, 400, 4, 1, blocking=True, in_step=in_step, deadline_s=60.0, tolerate_loss=True, restarts=None)
    settings = {} if in_step else {"anchor": 5, "max_anchor": 5}
    cost = Costs(wire_s=0.0, latency_s=0.0, start_s=lambda rank, life: 7.0)
    simulation = Simulation(POLICIES[name](**settings), world, cost, deaths=((12.5, 1),), keep=False)
    _, times = divided(simulation)
    slices, histories = times.slices(), times.histories
    whole = rank_seconds(slices, histories)
    histories.buffered = True
    written = slices.where((slices.rank != 1) | (slices.stop <= 8.0) | (slices.stop > 12.5))
    cut = rank_seconds(written, histories)
    assert cut["detecting"] == pytest.approx(whole["detecting"] + 0.5), "the half step of which nobody knows"
    assert cut["discarded"] == pytest.approx(whole["discarded"] - 0.5)
    same = [part for part in PARTS if part not in ("detecting", "discarded")]
    assert [cut[part] for part in same] == pytest.approx([whole[part] for part in same])


@pytest.mark.parametrize("mode", MODES)
def test_what_a_run_says_of_it_sums_to_one(mode: str) -> None:
    goodput = make_metrics(make_spec(mode)).goodput
    assert goodput is not None
    parts = goodput.parts.model_dump()
    assert sum(parts.values()) == pytest.approx(1)
    assert min(parts.values()) >= 0
    assert (parts["repeated"], parts["discarded"], parts["detecting"]) == (0, 0, 0)


def test_nobody_regroups_for_a_rank_that_is_lost_before_it_was_back() -> None:
    """All that the others waited and communicated until the next loss was booked as regrouping."""
    histories = Histories(3, 0.0, 100.0, ready={0: 1.0, 1: 1.0, 2: 1.0})
    moves: list[tuple[float, Move]] = [
        *((10.0, Drop(1, "gone")), (10.0, Join(0, 1, (0, 2), False, "x")), (10.0, Restart(1, 1, "x"))),
        *((15.0, Drop(1, "again")), (15.0, Restart(1, 2, "x"))),
        *((40.0, SendState(0, 1, "x", joins=True)), (45.0, Drop(1, "again")), (46.0, Join(0, 2, (0, 2), False, "x"))),
        *((90.0, Drop(2, "gone")), (90.0, Join(0, 3, (0,), False, "x"))),
    ]
    for at, move in moves:
        histories.move(at, move)
    assert histories.regroupings() == [Regrouping(10.0, 10.0), Regrouping(40.0, 46.0), Regrouping(90.0, 90.0)]
