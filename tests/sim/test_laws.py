"""The correctness laws, over random schedules in virtual time, against oracles that the core knows nothing of."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp.core.coordinator import Coordinator
from ddp.core.messages.commands import Average, Evaluate, Plan, Reduce, Train
from ddp.core.messages.events import Evaluated, Merged, Progress
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.process.codec import EVENTS
from ddp.sim import Costs, Simulation, simulate
from tests.sim.invariants import Invariants
from tests.sim.strategies import costs, examples, policies, suited, worlds

pytestmark = pytest.mark.timeout(900)  # hundreds of schedules each, on machines that others may use

POLICY_EVENTS = ("RoundClosed", "GuardVerdict", "Merged")


def covered_once(played: Simulation) -> None:
    """Law 1: every sample of every epoch is in the replica of every survivor, and in it once."""
    live = played.coordinator.cohort.live
    for rank in live:
        bits = played.ranks[rank].content
        inside = [entry.batch for index, entry in enumerate(played.trained) if bits >> index & 1]
        held = [(batch.epoch, batch.start, batch.stop) for batch in inside]
        tiled(held, played.world, f"rank {rank}")
    merged = [record for _, record in played.records if isinstance(record, Merged)]
    tiled([(event.epoch, *span) for event in merged for span in event.spans], played.world, "the record")


def tiled(stretches: list[tuple[int, int, int]], world: World, whose: str) -> None:
    """Stretches (epoch, start, stop) that are not empty, end to end, make every epoch whole."""
    filled = sorted(stretch for stretch in stretches if stretch[1] < stretch[2])
    ends = [(epoch, stop) for epoch, _, stop in filled if stop < world.samples]
    starts = [(epoch, start) for epoch, start, _ in filled if start > 0]
    assert starts == ends, f"of {whose}"
    assert [epoch for epoch, start, _ in filled if start == 0] == list(range(world.epochs)), f"of {whose}"
    assert [epoch for epoch, _, stop in filled if stop == world.samples] == list(range(world.epochs)), f"of {whose}"


def no_batch_is_cut_too_small(played: Simulation) -> None:
    """A rank trains batches that a single device has as well; or slices of a shared one that a model can do with."""
    world = played.world
    for entry in played.trained:
        batch = entry.batch
        if played.coordinator.plan is not None and played.coordinator.plan.in_step:
            assert not batch.samples or batch.samples >= min(world.least, batch.total)
        else:
            assert batch.start % world.batch == 0
            assert batch.stop == min(batch.start + world.batch, world.samples)


def weights_are_those_of_what_came_in(played: Simulation) -> None:
    """Law 2."""
    world = played.world
    orders = {order.round: order for _, order in played.records if isinstance(order, Reduce)}
    assert bool(orders) != world.blocking
    total = sum(sum(brought.values()) for _, brought in played.weights)
    assert total == world.samples * world.epochs, "every sample weighs once"
    for round, brought in played.weights:
        assert sum(brought.values()) > 0
        if not world.blocking:
            assert dict(zip(orders[round].members, orders[round].samples, strict=True)) == brought


def the_schedule_follows_the_samples_of_the_cohort(played: Simulation) -> None:
    """Law 5: what a rank takes for the samples seen is off by a window at most, with what runs ahead, and two steps of each.

    When a rank speaks, it is told what has been seen unless it is within a step of each of that. Until it speaks again no
    window can end without it: the others train what they may of this one, and a step each before they begin it.
    """
    world, whole = played.world, played.world.samples * played.world.epochs
    plans = [plan for _, plan in played.records if isinstance(plan, Plan)]
    window = max(sum(plan.counts) + sum(plan.ahead) for plan in plans) * world.batch
    slack = window + 2 * world.size * world.batch
    ends = sorted((entry.stop, entry.batch.samples) for entry in played.trained)
    stops, seen = [stop for stop, _ in ends], [0, *accumulate(samples for _, samples in ends)]
    for entry in played.trained:
        assert abs(min(entry.seen, whole) - seen[bisect_right(stops, entry.start)]) <= slack
    assert played.coordinator.cohort.samples == world.samples * world.epochs
    reported = sum(event.steps for _, event in played.records if isinstance(event, Progress))
    assert reported == len(played.trained), "the global step is the batches consumed"


def nobody_goes_back_in_the_schedule(played: Simulation) -> None:
    """Law 5: of a schedule that rises, every rank's learning rate rises, whatever was expected and came of it."""
    reached = dict.fromkeys(range(played.world.size), 0.0)
    for entry in sorted(played.trained, key=lambda entry: entry.start):
        assert entry.seen >= reached[entry.rank], f"rank {entry.rank}"
        assert entry.seen < played.world.samples * played.world.epochs, "no rank is at the end before it"
        reached[entry.rank] = entry.seen


def work_in_flight_is_bounded(played: Simulation) -> None:
    """Law 8: no rank is ever granted more than its count, what it may run ahead, and the window after."""
    world = played.world
    held = [0] * world.size
    limit = 0
    for _, record in played.records:
        match record:
            case Plan():
                limit = max(limit, max(3 * c + 2 * a for c, a in zip(record.counts, record.ahead, strict=True)))
                if record.in_step:
                    limit = world.steps
            case Train():
                held[record.rank] += record.chunk.steps
                assert held[record.rank] <= limit
            case Progress():
                held[record.rank] -= record.steps


def epochs_end_in_their_order(played: Simulation) -> None:
    """However far ahead a fast rank is; so the last evaluation is of the model that training ends with."""
    records = [record for _, record in played.records]
    ends = [record.epoch for record in records if isinstance(record, Evaluate)]
    assert ends == sorted(ends)
    last = next(at for at, record in enumerate(records) if isinstance(record, Evaluate) and record.epoch == ends[-1])
    assert not any(isinstance(record, (Train, Average)) for record in records[last:])


def the_record_replays(played: Simulation) -> None:
    """The recorded events yield the recorded commands, whoever recorded them."""
    coordinator = Coordinator.start(played.policy, played.world, at=0.0)
    again: list[Any] = []
    for _, record in played.records:
        if type(record).__name__ in EVENTS and type(record).__name__ not in POLICY_EVENTS:
            again.append(record)
            coordinator, outputs = coordinator.update(record)
            again += outputs
    assert again == [record for _, record in played.records]


@settings(max_examples=examples(200), deadline=None)
@given(policies(), worlds(), costs())
def test_the_laws_hold_where_nothing_goes_wrong(policy: Any, world: World, cost: Costs) -> None:
    """A schedule is played once, and held against every law."""
    played = simulate(suited(policy, world), world, costs=cost, watch=Invariants())
    assert played.status == "ok"
    covered_once(played)
    evaluated = Counter(event.epoch for _, event in played.records if isinstance(event, Evaluated))
    assert evaluated == Counter(dict.fromkeys(range(world.epochs), world.size))
    if not world.in_step:
        weights_are_those_of_what_came_in(played)
    no_batch_is_cut_too_small(played)
    the_schedule_follows_the_samples_of_the_cohort(played)
    nobody_goes_back_in_the_schedule(played)
    work_in_flight_is_bounded(played)
    epochs_end_in_their_order(played)
    the_record_replays(played)


@pytest.mark.parametrize("slow", [8, 16])
@pytest.mark.parametrize("report_s", [0.0, 0.02, 1.0])
def test_a_fast_rank_that_is_through_with_the_last_epoch_does_not_end_it(slow: int, report_s: float) -> None:
    """It was evaluated while a slow rank had steps of the one before to do: not the model that the run ends with."""
    world = World(2, samples=203, batch=8, epochs=3, blocking=False, in_step=False, deadline_s=5.0)
    cost = Costs(
        lambda rank, step: 0.001 * (1, slow)[rank], latency_s=0.0005, wire_s=0.001, reduce_s=0.001, report_s=report_s
    )
    played = simulate(POLICIES["cadence"](), world, costs=cost, watch=Invariants())
    covered_once(played)
    epochs_end_in_their_order(played)


@settings(max_examples=examples(200), deadline=None)
@given(policies(), worlds(tolerate_loss=True), costs(), st.data())
def test_deaths_lose_no_sample(policy: Any, world: World, cost: Costs, data: st.DataObject) -> None:
    whole = simulate(suited(policy, world), world, costs=cost).now
    doomed = data.draw(st.lists(st.integers(0, world.size - 1), unique=True, max_size=world.size - 1))
    # Not before all are ready: a cohort that never was complete fails, whoever is tolerated later.
    first = 2 * cost.latency_s
    ends = [(first + (whole - first) * data.draw(st.integers(0, 999)) / 1000, rank) for rank in doomed]
    silent = data.draw(st.integers(0, len(ends)))
    torn = data.draw(st.integers(0, 2**world.size - 1))
    played = simulate(
        suited(policy, world),
        world,
        costs=cost,
        deaths=tuple(ends[silent:]),
        stalls=tuple(ends[:silent]),
        torn=lambda rank: bool(torn >> rank & 1),
        watch=Invariants(),
    )
    assert played.status == "ok"
    covered_once(played)
    no_batch_is_cut_too_small(played)
    nobody_goes_back_in_the_schedule(played)
    lost = [rank for rank, state in enumerate(played.coordinator.cohort.ranks) if not state.alive]
    assert set(lost) <= set(doomed), "no rank is given up while it works"
