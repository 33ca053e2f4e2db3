"""The coordinator's answers where losses are tolerated: who is given up, and whose samples are done by others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddp.core.errors import ProtocolError
from ddp.core.grants import shared_grants
from ddp.core.messages.commands import Abort, Drop, Reduce, SendState, Shorten, Train
from ddp.core.messages.events import (
    Alive,
    Averaged,
    AverageFailed,
    Ending,
    Evaluated,
    Failed,
    Lost,
    Merged,
    Progress,
    Reduced,
    Shared,
    Snapshot,
    Tick,
)
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.sync import Sync
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import KINDS, LOSING, Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, simulate
from tests.core.played import play, ready

TOLERANT = World(2, 100, 10, 1, blocking=False, in_step=False, deadline_s=5.0, tolerate_loss=True)


def test_an_error_of_all_ranks_ends_the_run_at_once_also_where_losses_are_tolerated() -> None:
    refused = Failed(2.0, 1, "such links can be predicted only", "", kind="refused")
    coordinator, issued = play(ready(0), ready(1), refused, world=TOLERANT)
    assert [order for order in issued if isinstance(order, Abort | Drop)] == [
        Abort("failed", "all ranks: such links can be predicted only")
    ]
    assert coordinator.over


def three(**changes: Any) -> World:
    values = {"size": 3, "samples": 90, "batch": 10, "epochs": 1, "blocking": True, "in_step": False}
    return World(**{**values, "deadline_s": 5.0, "tolerate_loss": True, **changes})


@pytest.mark.parametrize(
    "event",
    [
        Averaged(2.0, 0, 0, 1, 10, 0.1, 8, 0.0),
        Snapshot(2.0, 0, 0, 1, 10),
        Evaluated(2.0, 0, 1, 1, 0.0, 1.0, 0.1),
        Progress(2.0, 0, 0, 99, 990, 0.1, 0.0, 0.1),
        Progress(2.0, 0, 0, 1, 7, 0.1, 0.0, 0.1),
        Progress(2.0, 0, 0, 1, 10, 0.1, 0.0, 0.1, (), 3),
        AverageFailed(2.0, 0, 0, "x", 5),
    ],
)
def test_a_rank_whose_word_does_not_fit_is_given_up_by_name_where_losses_are_tolerated(event: Any) -> None:
    coordinator, issued = play(ready(0), ready(1), event, world=TOLERANT)
    drops = [order for order in issued if isinstance(order, Drop)]
    assert [order.rank for order in drops] == [0]
    assert "rank 0" in drops[0].reason or "rank=0" in drops[0].reason
    assert not coordinator.over
    with pytest.raises(ProtocolError):
        play(ready(0), ready(1), event, world=replace(TOLERANT, tolerate_loss=False))


def test_what_the_coordinator_itself_gets_wrong_stays_an_error() -> None:
    with pytest.raises(ProtocolError):
        play(ready(0), ready(1), Reduced(2.0, 0, 0.1, 8), world=TOLERANT)


def test_training_that_went_into_a_collective_unreported_is_in_the_model() -> None:
    """Its report was lost; the others hold it in their replicas, so it must not be trained again."""
    readies = [ready(rank, samples=90) for rank in range(3)]
    trained = [Progress(2.0, rank, 0, 1, 10, 0.1, 0.0, 0.1) for rank in (0, 1)]
    averaged = [Averaged(3.0, rank, 0, 1, 10, 0.1, 8, 0.0) for rank in (2, 0, 1)]
    coordinator, issued = play(*readies, *trained, *averaged, world=three(), policy=Sync())
    assert [order.rank for order in issued if isinstance(order, Drop)] == [2]
    merged = sorted(span for line in issued if isinstance(line, Merged) for span in line.spans)
    assert [stop - start for start, stop in merged] == [10, 10, 10]
    assert coordinator.cohort.samples == 30


def test_what_a_rank_says_before_its_answer_to_a_collective_is_not_held_against_what_went_in() -> None:
    """Found in review: its last words on the round were lost, and it had trained on. That is not in the others' replicas."""
    readies = [ready(rank, samples=90) for rank in range(3)]
    trained = [Progress(2.0, rank, 0, 1, 10, 0.1, 0.0, 0.1) for rank in range(3)]
    averaged = [Averaged(3.0, rank, 0, 1, 10, 0.1, 8, 0.0) for rank in (0, 1)]
    further = Progress(4.0, 2, 0, 1, 10, 0.1, 0.0, 0.1, (), 0)
    silence = [Alive(8.0, 0), Alive(8.0, 1), Tick(8.5)]
    coordinator, issued = play(*readies, *trained, *averaged, further, *silence, world=three(), policy=Sync())
    assert [order.rank for order in issued if isinstance(order, Drop)] == [2]
    assert sum(stop - start for line in issued if isinstance(line, Merged) for start, stop in line.spans) == 30
    assert coordinator.cohort.samples == 30


def test_a_rank_far_slower_than_the_others_does_not_end_the_run() -> None:
    """Found by the fault campaign: the wait for it was taken for a collective that broke. Who waits gives signs of life."""
    world = World(3, 60, 1, 2, blocking=True, in_step=False, deadline_s=5.0)
    played = simulate(Cadence(anchor=11), world, costs=Costs(lambda rank, step: (0.01, 0.4, 0.01)[rank]))
    assert played.status == "ok"
    assert not any(isinstance(record, AverageFailed) for _, record in played.records)
    assert any(isinstance(record, Alive) for _, record in played.records)


def test_a_round_in_which_nobody_brought_anything_is_not_averaged() -> None:
    """Found by the fault campaign: weights of zero, after the only rank that had trained was lost."""
    world = World(2, 1, 1, 1, blocking=False, in_step=False, tolerate_loss=True)
    readies = [ready(rank, samples=1) for rank in range(2)]
    trained = Progress(2.0, 0, 0, 1, 1, 0.1, 0.0, 0.1)
    coordinator, issued = play(*readies, trained, Snapshot(3.0, 1, 0, 0, 0), Lost(3.0, 0, "killed"), world=world)
    assert not any(isinstance(order, Reduce) for order in issued)
    assert [order.rank for order in issued if isinstance(order, Train)] == [0, 1], "its sample is trained by the other"
    assert coordinator.cohort.round is None


def test_a_grant_after_a_larger_window_does_not_leave_the_schedule() -> None:
    """Found by the fault campaign: ten queued steps, taken at the pace of the window of one step that follows."""
    costs = Costs(lambda rank, step: (0.1, 0.01)[rank])
    played = simulate(Cadence(anchor=12), World(2, 39, 2, 3, blocking=True, in_step=False), costs=costs)
    grants = [order for _, order in played.records if isinstance(order, Train)]
    assert max(order.seen for order in grants) < 3 * 39


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("policy", [Sync(), Cadence(anchor=3), Async(anchor=3)], ids=["sync", "cadence", "async"])
@pytest.mark.parametrize("backend", ["snapshots", "collectives"])
def test_a_scripted_fault_is_named_and_its_samples_are_done_by_others(kind: str, policy: Policy, backend: str) -> None:
    blocking = backend == "collectives"
    world = three(blocking=blocking, in_step=blocking)
    played = simulate(policy, world, faults=(Fault(1, 1, kind),))
    assert [fault.kind for _, fault in played.struck] == [kind]
    assert played.status == "ok"
    lost = [record.rank for _, record in played.records if isinstance(record, Drop)]
    assert lost == ([1] if kind in LOSING else [])
    spans = sorted(span for _, line in played.records if isinstance(line, Merged) for span in line.spans)
    assert sum(stop - start for start, stop in spans) == 90
    limit = 9 + 3 * world.deadline_s  # all steps by one rank, and the deadlines of a collective and of a silence
    assert played.now < limit + 5


def test_a_survivor_whose_report_of_steps_in_common_is_lost_does_not_have_them_trained_again() -> None:
    """Found in review: the rest of the epoch is cut where the reports end; when the other ranks with the truth are gone."""
    world = three(samples=90, in_step=True)
    readies = [ready(rank, samples=90) for rank in range(3)]
    trained = [Progress(2.0, rank, 0, 2, 20, 0.1, 0.0, 0.1) for rank in (0, 2)]  # rank 1's is lost
    broken = [AverageFailed(3.0, rank, -1, "a member is gone", 2) for rank in (1, 0)]
    gone = Lost(2.5, 2, "killed")
    coordinator, issued = play(*readies, *trained, gone, *broken, world=world, policy=Sync())
    assert [order.rank for order in issued if isinstance(order, Drop)] == [2, 1]
    again = [order.chunk for order in issued if isinstance(order, Train)][3:]
    assert [(chunk.start, chunk.stop) for chunk in again] == [(60, 90)]
    assert not any(isinstance(order, SendState) for order in issued), "nobody takes an old state for a newer one"
    assert not coordinator.over


def test_a_survivor_that_only_waits_is_not_taken_for_a_stuck_collective() -> None:
    """Found by the fault campaign: three ranks fell silent one after the other, and nobody had moved in the meantime."""
    world = World(5, 8, 1, 1, blocking=True, in_step=False, deadline_s=5.0, tolerate_loss=True)
    policy = Async(anchor=1, partition_ratios=(0.05, 0.05, 2.5, 20.0, 0.05))
    costs = Costs(lambda rank, step: 0.1, latency_s=0.0, wire_s=0.3)
    stalls = tuple((0.0, rank) for rank in range(3))
    assert simulate(policy, world, costs=costs, stalls=stalls, deaths=((0.0, 4),)).status == "ok"


def test_the_end_of_the_last_rank_is_told_by_its_silence() -> None:
    """The run ended with `all ranks live, but a collective takes over 2.0 s`: one was given up, the other silent."""
    faults = Fault(0, 1, "lose"), Fault(1, 1, "stall")
    world = World(2, 300, 5, 2, blocking=True, in_step=True, deadline_s=1.0, tolerate_loss=True)
    played = simulate(Sync(), world, costs=Costs(lambda rank, step: 0.1), faults=faults)
    assert played.aborted == Abort("failed", "rank 0: silent for 1.1 s")


def test_ranks_that_are_still_heard_get_their_time_to_notice_a_loss() -> None:
    """They were stuck in a collective together, by the time that had passed before it lost a member."""
    world = three(in_step=True)
    beats = [Alive(at, rank) for at in (4.0, 8.0) for rank in range(3)]
    readies = [ready(rank, samples=90) for rank in range(3)]
    late = [Alive(10.5, 0), Alive(10.5, 1)]
    silent = play(*readies, *beats, Tick(9.0), *late, world=world, policy=Sync())[0]
    assert not silent.over
    lost, issued = silent.update(Tick(13.5))
    assert [type(order) for order in issued] == [Drop]
    lost, issued = lost.update(Tick(14.0))
    assert (lost.over, issued) == (False, ())


@pytest.mark.parametrize("told_before", [True, False])
def test_grants_of_a_group_that_lost_a_rank_are_not_cut_for_the_end(
    monkeypatch: pytest.MonkeyPatch, told_before: bool
) -> None:
    """Their exchange is about to break. They were cut anew where the lost rank had reported most: to an earlier step."""
    monkeypatch.setattr(shared_grants, "WATCH_S", 0.0)
    world = three(samples=900, in_step=True, checkpoints=Checkpointing(1, "epochs", 1e6))
    readies = [ready(rank, samples=900) for rank in range(3)]
    first, *others = [Progress(3.0, rank, 0, 2, 20, 0.1, 0.0, 0.1) for rank in (1, 0, 2)]
    gone = Lost(4.0, 1, "killed")
    reports = [first, gone, *others] if told_before else [gone, first, *others]
    _, issued = play(*readies, Ending(2.0), *reports, world=world, policy=Sync())
    kinds = [type(order) for order in issued if isinstance(order, (Drop, Shorten))]
    assert kinds == [Shorten] * 3 * told_before + [Drop]


@pytest.mark.parametrize(("second", "ends"), [(1, False), (2, True)])
def test_a_rank_that_raises_the_same_again_is_no_second_rank(second: int, ends: bool) -> None:
    """It came back and met the same error before the next average: the run ended, as by an error of two ranks."""
    first = Failed(2.0, 1, "E", "tb", "script.py:7")
    back = (Joining(3.0, 1, 90, "d", 1), Shared(3.1, 0, 0), Joined(3.2, 1, 0))
    readies = [ready(rank, samples=90) for rank in range(3)]
    world = three(blocking=False, restarts=None)
    coordinator, issued = play(*readies, first, *back, replace(first, at=3.3, rank=second), world=world)
    assert coordinator.over == ends
    assert [order.rank for order in issued if isinstance(order, Drop)] == ([1] if ends else [1, 1])
    assert [order.reason for order in issued if isinstance(order, Abort)] == ["rank 2: E (so did rank 1)"] * ends
