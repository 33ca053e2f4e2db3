"""The coordinator's answers to what should not happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddp.core.coordinator import Coordinator
from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Abort, Join, Stop, Train
from ddp.core.messages.events import (
    Alive,
    Averaged,
    AverageFailed,
    Evaluated,
    Failed,
    Lost,
    Progress,
    Ready,
    Reduced,
    RoundClosed,
    Snapshot,
    Tick,
)
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.sync import Sync
from ddp.core.samples.spans import Chunk
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.world import World
from ddp.core.state.round_state import Phase
from ddp.core.values.persistent import RankSet
from ddp.core.worker import Idle, Step, Worker
from ddp.sim import Costs, simulate
from tests.core.played import WORLD, play, ready


def test_work_is_granted_once_all_are_ready() -> None:
    assert play(ready(0))[1] == []
    _, issued = play(ready(0), ready(1))
    assert [order.rank for order in issued if isinstance(order, Train)] == [0, 1]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ready(1, digest="other"), "different parameters"),
        (ready(1, samples=99), "99 training samples"),
        (Failed(2.0, 1, "ValueError: x", "..."), "rank 1: ValueError: x"),
        (Lost(2.0, 1, "killed"), "rank 1: killed"),
        (Tick(25.5), "rank 1: silent for 25.5 s"),
    ],
)
def test_what_ends_a_run(event: Any, reason: str) -> None:
    coordinator, issued = play(ready(0), event)
    aborts = [order for order in issued if isinstance(order, Abort)]
    assert len(aborts) == 1
    assert aborts[0].status == "failed"
    assert reason in aborts[0].reason
    assert coordinator.over


def test_silence_counts_from_the_order_that_is_owed_an_answer() -> None:
    late = Ready(59.0, 1, 100, 1, "d", "cpu", "gloo")
    coordinator, _ = play(ready(0), late, Tick(63.0))
    assert not coordinator.over
    coordinator, issued = play(ready(0), late, Tick(64.5))
    assert issued[-1] == Abort("failed", "rank 0: silent for 5.5 s")


def test_time_in_which_nobody_listened_is_no_ranks_silence() -> None:
    busy = (ready(0), ready(1), Tick(70.0, away_s=60.0))
    assert not play(*busy)[0].over
    assert not play(*busy, Tick(74.5))[0].over
    assert play(*busy, Tick(75.5))[0].over


def test_time_in_which_nobody_listened_is_no_averaging_that_hangs() -> None:
    """A callback at a checkpoint is called before the order to average is handed on."""
    world = replace(WORLD, blocking=False)
    trained = [Progress(2.0, rank, 0, 5, 50, 0.1, 0.0, 0.1) for rank in range(2)]
    laid = [Snapshot(3.0, rank, 0, 5, 50) for rank in range(2)]
    waiting = (ready(0), ready(1), *trained, *laid)
    current = play(*waiting, world=world)[0].cohort.round
    assert current is not None
    assert current.phase is Phase.REDUCE
    beats = [Alive(65.0, rank) for rank in range(2)]
    assert not play(*waiting, *beats, Tick(65.0, away_s=60.0), Tick(69.5), world=world)[0].over
    assert "averaging the snapshots" in play(*waiting, *beats, Tick(65.0), world=world)[1][-1].reason


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_stuck_collective_ends_the_run_also_where_it_closes_an_epoch(epochs: int) -> None:
    """What is to be evaluated or saved behind it was taken for an evaluation in progress."""
    world = replace(WORLD, epochs=epochs, checkpoints=Checkpointing(1, "averages", 0.0))
    trained = [Progress(2.0, rank, 0, 5, 50, 0.1, 0.0, 0.1) for rank in range(2)]
    beats = [Alive(at, rank) for at in (5.0, 9.0, 12.0) for rank in range(2)]
    coordinator, issued = play(ready(0), ready(1), *trained, *beats, world=world)
    current = coordinator.cohort.round
    assert current is not None
    assert current.closes == (0,)
    assert {owed.epoch for owed in coordinator.cohort.evaluating} == {0}
    assert len(coordinator.cohort.savings) == epochs - 1, "none is made at the end"
    assert not coordinator.over
    coordinator, issued = coordinator.update(Tick(12.5))
    assert issued == (Abort("failed", "all ranks live, but a collective takes over 10.0 s"),)


def test_ranks_that_evaluate_before_a_collective_are_not_stuck_in_it() -> None:
    """The second of two averages is ordered while both are at the evaluation behind the first."""
    world = replace(WORLD, epochs=2)
    trained = [Progress(2.0, rank, 0, 5, 50, 0.1, 0.0, 0.1) for rank in range(2)]
    averaged = [Averaged(3.0, rank, 0, 5, 50, 0.1, 8, 0.0) for rank in range(2)]
    beats = [Alive(at, rank) for at in (7.0, 11.0, 14.0) for rank in range(2)]
    coordinator, _ = play(ready(0), ready(1), *trained, *averaged, *beats, Tick(14.5), world=world)
    assert coordinator.cohort.round is not None
    assert not coordinator.over


def test_what_a_round_keeps_ranks_from_training_is_part_of_its_cost() -> None:
    """Weighed by samples, beside the shortest stay in the collective."""
    trained = [Progress(2.0, 0, 0, 8, 80, 0.1, 0.0, 0.1), Progress(2.0, 1, 0, 2, 20, 0.1, 0.0, 0.1)]
    averaged = [
        Averaged(3.0, 0, 0, 8, 80, 0.1, 8, 0.0, away_s=0.02),
        Averaged(3.0, 1, 0, 2, 20, 0.3, 8, 0.0, away_s=0.07),
    ]
    _, issued = play(ready(0), ready(1), *trained, *averaged, policy=Cadence(speed_hint=(4.0, 1.0)))
    (closed,) = (output for output in issued if isinstance(output, RoundClosed))
    assert closed.sync_s == pytest.approx(0.1 + 0.8 * 0.02 + 0.2 * 0.07)
    assert closed.wait_s == pytest.approx((0.0, 0.2))


@pytest.mark.parametrize("rounds", [(0, 0), (-1, -1)], ids=["between steps", "inside a step"])
def test_an_exchange_that_breaks_although_nobody_is_gone_ends_the_run(rounds: tuple[int, int]) -> None:
    """Else it would break again, for ever."""
    trained = [Progress(2.0, rank, 0, 5, 50, 0.1, 0.0, 0.1) for rank in range(2)]
    again = [max(round, 2 * round + 1) for round in rounds]
    broken = [AverageFailed(3.0, rank, round, "invalid scalar type") for rank, round in enumerate(rounds)]
    broken_again = [AverageFailed(4.0, rank, round, "invalid scalar type") for rank, round in enumerate(again)]
    policy = Cadence() if rounds == (0, 0) else Sync()
    coordinator, issued = play(ready(0), ready(1), *trained[: 2 * (again[0] + 1)], *broken, policy=policy)
    assert not coordinator.over, "it is tried once more"
    assert [order.generation for order in issued if isinstance(order, Join)] == [0, 0, 1, 1]
    coordinator, issued = play(
        ready(0), ready(1), *trained[: 2 * (again[0] + 1)], *broken, *broken_again, policy=policy
    )
    assert coordinator.over
    assert isinstance(issued[-1], Abort)
    assert "invalid scalar type" in issued[-1].reason


def test_an_average_that_is_not_finite_is_divergence() -> None:
    trained = [Progress(2.0, rank, 0, 5, 50, 0.1, 0.0, 0.1) for rank in range(2)]
    _, issued = play(ready(0), ready(1), *trained, Averaged(3.0, 0, 0, 5, 50, 0.1, 8, None))
    assert issued[-1] == Abort("diverged", "the parameters of rank 0 are not finite")


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged() -> None:
    _, issued = play(ready(0), ready(1), Progress(2.0, 0, 0, 1, 10, 0.1, None, 0.1))
    assert issued[-1] == Abort("diverged", "the training loss of rank 0 is not finite")


@pytest.mark.parametrize(
    "event",
    [
        Averaged(2.0, 0, 0, 1, 10, 0.1, 8, 0.0),
        Reduced(2.0, 0, 0.1, 8),
        Evaluated(2.0, 0, 1, 1, 0.0, 1.0, 0.1),
        Progress(2.0, 0, 0, 9, 90, 0.1, 0.0, 0.1),
        Progress(2.0, 0, 0, 1, 7, 0.1, 0.0, 0.1),
        ready(0),
    ],
)
def test_an_event_that_the_state_does_not_know_is_one_error_that_names_both(event: Any) -> None:
    with pytest.raises(ProtocolError, match=r"rank 0|round in flight|owed"):
        play(ready(0), ready(1), event)


def test_what_a_rank_trained_since_its_snapshot_is_free_again_when_it_dies_before_the_update() -> None:
    """Found by the fault campaign: its steps were lost, because they looked like part of the round in flight."""
    world = World(2, 8, 1, 1, blocking=False, in_step=False, tolerate_loss=True)
    events: list[Any] = [ready(rank, samples=8) for rank in range(2)]
    events += [Progress(2.0, rank, 0, 2, 2, 0.1, 0.0, 0.1) for rank in range(2)]
    events += [Snapshot(3.0, rank, 0, 2, 2) for rank in range(2)]
    events += [Progress(4.0, 0, 0, 1, 1, 0.1, 0.0, 0.1), Reduced(5.0, 0, 0.1, 8), Lost(6.0, 0, "killed")]
    coordinator, issued = Coordinator.start(Cadence(anchor=2), world, at=0.0), []
    for event in events:
        coordinator, issued = coordinator.update(event)
    again = [order.chunk for order in issued if isinstance(order, Train)]
    assert sum(chunk.steps for chunk in again) == 2, "the one it had trained and the one it had not begun"


def test_a_slow_rank_does_not_run_ahead_in_the_schedule() -> None:
    """Found by the fault campaign: the steps that `async` lets a slow rank run ahead took it past the end of training."""
    world = World(2, 4000, 1, 1, blocking=False, in_step=False)
    costs = Costs(lambda rank, step: (0.001, 0.1)[rank], latency_s=0.0)
    played = simulate(Async(anchor=1, max_overshoot=4), world, costs=costs)
    plan = played.coordinator.plan
    assert plan is not None
    assert plan.counts[0] > 50 * plan.counts[1]
    slow = [order for _, order in played.records if isinstance(order, Train) and order.rank == 1]
    assert len(slow) > 10
    assert max(order.seen + order.pace * order.chunk.steps for order in slow) <= 4000 + 2 * sum(plan.counts) + 8


def test_the_worker_obeys_orders_before_grants_in_their_order() -> None:
    worker = Worker().receive(Train(0, Chunk(0, 0, 20, 10), seen=0, pace=2.0, reason=""))
    worker, step = worker.act()
    assert isinstance(step, Step)
    assert (step.batch.start, step.seen, step.last) == (0, 0.0, False)
    worker = worker.receive(Stop(0, ""))
    worker, order = worker.act()
    assert order == Stop(0, "")
    worker, step = worker.act()
    assert isinstance(step, Step)
    assert (step.batch.start, step.seen, step.last) == (10, 20.0, True)
    assert worker.act()[1] == Idle()
    with pytest.raises(ProtocolError, match="after the order to stop"):
        worker.receive(Stop(0, ""))


def test_a_rank_whose_last_collective_broke_owes_its_last_report() -> None:
    """PyTorch's modes take a mean at the end: two of three ranks stood still there, and the third was taken for gone."""
    worker, order = Worker().receive(Stop(0, "")).act()
    assert (worker.stopped, order) == (True, Stop(0, ""))
    assert worker.broke().act()[1] == Idle()
    assert not worker.broke().stopped
    coordinator, _ = play(ready(0), ready(1))
    cohort = replace(coordinator.cohort, stopping=True, broken=RankSet((0,)), cause="no answer")
    issued = replace(coordinator, cohort=cohort).update(Tick(6.5))[1]
    assert issued[-1] == Abort("failed", "rank 0: silent for 5.5 s, since a collective broke (no answer)")
