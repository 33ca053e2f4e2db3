"""Ranks that join while others are lost: what they load, who sends it, and which starts count."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from ddp.core.messages.commands import Drop, LoadState, Restart, SendState
from ddp.core.messages.events import Finished
from ddp.core.messages.join_events import Joined
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.sim.invariants import Invariants


def play(policy: str, cost: Costs, *, in_step: bool = False, world: Any = None, **happens: Any) -> Simulation:
    """Play a run of four ranks, or of `world`, with the laws checked at every event; no run ends early."""
    plain = {"deadline_s": 3.0, "tolerate_loss": True, "restarts": None} | (world or {})
    played = Simulation(
        POLICIES[policy](),
        World(4, 96, 4, 1, blocking=True, in_step=in_step, **plain),
        cost,
        watch=Invariants(),
        **happens,
    ).run()
    assert played.aborted is None, played.aborted
    return played


def test_ranks_a_step_behind_and_ranks_that_join_load_what_is_meant_for_them() -> None:
    """They were sent the state for a rank that joins, in which ranks a step behind found no tensors: these were lost, and
    with two of them the run."""
    both = 0
    for seed in range(40):
        draw = random.Random(seed)
        first = draw.uniform(1, 3)
        torn = [draw.random() < 0.5 for _ in range(4)]
        cost = Costs(wire_s=0.5, latency_s=draw.uniform(0, 0.1), start_s=lambda rank, life: 0.3)
        deaths = ((first, 3), (first + draw.uniform(0, 1.2), 2))
        played = play("sync", cost, in_step=True, deaths=deaths, torn=torn.__getitem__)
        forms = defaultdict[int, set[bool]](set)
        for _, record in played.records:
            if isinstance(record, SendState | LoadState):
                forms[record.round].add(record.joins)
        assert all(len(each) == 1 for each in forms.values()), f"{seed}: {dict(forms)}"
        both += {True, False} <= {form for each in forms.values() for form in each}
    assert both > 1, "not once was there one of each"


def test_ranks_that_are_lost_while_they_send_their_state_end_no_run() -> None:
    """The second of them did: `replicas could not be averaged`."""
    killed: list[int] = []

    def watch(played: Simulation) -> None:
        for _, record in played.records[seen[0] :]:
            if isinstance(record, SendState) and record.joins and len(killed) < 2:
                killed.append(record.rank)
                played.kill(record.rank, 0.5)
        seen[0] = len(played.records)

    seen = [0]
    world = World(4, 96, 4, 1, blocking=True, in_step=False, tolerate_loss=True, absent=1)
    cost = Costs(wire_s=0.1, copy_s=1.0)
    played = Simulation(POLICIES["cadence"](anchor=2, max_anchor=2), world, cost, offers=(1.0,), watch=watch).run()
    assert killed == [0, 1]
    assert played.aborted is None, played.aborted
    joined = [record.rank for _, record in played.records if isinstance(record, Joined)]
    finished = {record.rank for _, record in played.records if isinstance(record, Finished)}
    assert (joined, finished) == ([3], {2, 3})


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_process_that_was_offered_is_none_of_the_restarts(restarts: int) -> None:
    """A rank that had joined was not restarted: its first process counted as the only restart."""
    world = {"restarts": restarts, "absent": 1}
    cost = Costs(wire_s=0.1, start_s=lambda rank, life: 0.5)
    played = play("cadence", cost, world=world, offers=(1.0,), deaths=((4.0, 3), (8.0, 3)))
    starts = [record.life for _, record in played.records if isinstance(record, Restart)]
    assert starts == [1, 2][: 1 + restarts]
    assert sum(isinstance(record, Drop) for _, record in played.records) == 1 + restarts


def test_a_rank_that_has_joined_gets_its_own_slice_though_nothing_was_measured_since() -> None:
    """Its slice was all of an epoch, and nobody else's: no rank was granted a step, and the run stood still."""
    own = POLICIES["cadence"](partition_ratios=(1.0, 0.05, 0.3, 20.0), anchor=12)
    step_s = {0: 0.043, 1: 0.026, 2: 0.023, 3: 0.01}
    cost = Costs(lambda rank, step: step_s[rank], latency_s=0.05, wire_s=0.002, start_s=lambda rank, life: 0.0)
    plain: dict[str, Any] = {"deadline_s": 5.0, "tolerate_loss": True, "restarts": None, "absent": 1, "spares": 1}
    world = World(4, 8, 4, 3, blocking=True, in_step=False, **plain)
    faults = (Fault(3, 0, "lose"), Fault(2, 0, "lose"))
    for moment in range(30):
        happens: dict[str, Any] = {"deaths": ((0.35 + 0.005 * moment, 0),), "offers": (0.7, 0.9), "faults": faults}
        played = Simulation(own, world, cost, torn=lambda rank: rank == 2, watch=Invariants(), limit_s=30.0, **happens)
        assert played.run().aborted is None, moment


@pytest.mark.parametrize(("spares", "offers"), [(1, ()), (0, (0.1,))])
def test_what_an_old_process_sent_does_not_end_the_one_that_took_its_place(spares: int, offers: tuple[float]) -> None:
    """The end of the old one was taken for that of the new one, where nobody watched and no rank was restarted."""
    world = World(3, 300, 5, 2, blocking=True, in_step=False, tolerate_loss=True, spares=spares)
    cost, faults = Costs(notice_s=0.3), (Fault(2, 5, "raise"),)
    watches = None, lambda played: None
    runs = [
        Simulation(POLICIES["cadence"](), world, cost, offers=offers, faults=faults, watch=w).run() for w in watches
    ]
    assert [run.coordinator.cohort.live for run in runs] == [(0, 1, 2)] * 2
    assert runs[0].records == runs[1].records
