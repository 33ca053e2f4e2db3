"""Going on from checkpoints, over random schedules in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddp.core.coordinator import Coordinator
from ddp.core.messages.commands import LoadState, Publish, Shorten
from ddp.core.messages.events import Alive, Ending, Merged, RoundClosed
from ddp.core.policies import POLICIES
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from tests.policies import accepted
from tests.sim.strategies import examples


def merged(records: list[tuple[float, Any]]) -> Counter[tuple[int, int]]:
    spans = [(event.epoch, *span) for _, event in records if isinstance(event, Merged) for span in event.spans]
    return Counter((epoch, position) for epoch, start, stop in spans for position in range(start, stop))


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_a_checkpoint_and_the_run_from_it_train_every_sample_once(data: Any) -> None:
    draw = data.draw
    name, blocking = draw(st.sampled_from(sorted(POLICIES))), draw(st.booleans())
    policy = POLICIES[name](**accepted(name, anchor=draw(st.integers(1, 5))))
    world = World(
        size=draw(st.integers(1, 4)),
        samples=draw(st.integers(1, 150)),
        batch=draw(st.integers(1, 8)),
        epochs=draw(st.integers(1, 4)),
        blocking=blocking,
        in_step=blocking,
        tolerate_loss=True,
        checkpoints=Checkpointing(draw(st.integers(1, 4)), draw(st.sampled_from(["epochs", "averages"])), 0.0),
    )
    speeds = draw(st.lists(st.sampled_from([1.0, 0.5, 0.2]), min_size=4, max_size=4))
    costs = Costs(lambda rank, step: 0.01 / speeds[rank], copy_s=0.005, wire_s=0.003)
    deaths = ((draw(st.floats(0, 0.5)), 1),) if world.size > 2 and draw(st.booleans()) else ()
    whole = simulate(policy, world, costs=costs, deaths=deaths)
    orders = [index for index, (_, record) in enumerate(whole.records) if isinstance(record, Publish)]
    for index in orders[:4]:
        order = whole.records[index][1]
        assert isinstance(order, Publish)
        before = merged(whole.records[:index])
        assert before.total() == order.coordinator.samples
        rest = Simulation(policy, world, costs)
        rest.coordinator = Coordinator.start(policy, world, 0.0, order.coordinator)
        both = before + merged(rest.run().records)
        assert rest.status == "ok"
        assert set(both.values()) == {1}
        assert both.total() == world.samples * world.epochs


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_every_checkpoint_that_is_due_is_made_whatever_the_schedule(data: Any) -> None:
    draw = data.draw
    name, blocking = draw(st.sampled_from(sorted(POLICIES))), draw(st.booleans())
    policy = POLICIES[name](**accepted(name, anchor=draw(st.integers(1, 30))))
    every, unit = draw(st.integers(1, 3)), draw(st.sampled_from(["epochs", "averages"]))
    world = World(
        size=draw(st.integers(1, 4)),
        samples=draw(st.integers(1, 200)),
        batch=draw(st.integers(1, 8)),
        epochs=draw(st.integers(2, 7)),
        blocking=blocking,
        in_step=blocking,
        checkpoints=Checkpointing(every, unit, 0.0),
    )
    speeds = draw(st.lists(st.sampled_from([1.0, 0.5, 0.2]), min_size=4, max_size=4))
    # Laying down may take longer than the training of an epoch.
    copy_s = draw(st.sampled_from([0.0, 0.005, 0.1, 2.0]))
    costs = Costs(lambda rank, step: 0.01 / speeds[rank], copy_s=copy_s, wire_s=0.003)
    ends = Ends()
    run = simulate(policy, world, costs=costs, watch=ends)
    made = [record.coordinator for _, record in run.records if isinstance(record, Publish)]
    if unit == "epochs":
        assert [books.epochs for books in made] == expected(ends.complete, every, world.epochs)
    else:
        averages = [books.rounds for books in made if books.rounds]
        assert all(after - before == every for before, after in pairwise([0, *averages]))
        rounds = sum(isinstance(record, RoundClosed) for _, record in run.records)
        assert rounds // every - len(averages) in (0, 1)  # the end of the run makes none


class Ends:
    """Watches how many epochs are complete with each average; inside steps, at any time."""

    def __init__(self) -> None:
        self.complete: list[int] = []
        self._read = self._coming = 0

    def __call__(self, run: Simulation) -> None:
        """After an event."""
        new, self._read = run.records[self._read :], len(run.records)
        cohort, plan = run.coordinator.cohort, run.coordinator.plan
        if plan is not None and plan.in_step:
            self.complete.append(cohort.complete)
        elif any(isinstance(record, RoundClosed) for _, record in new):
            self.complete.append(self._coming)
        if cohort.round is not None:
            self._coming = cohort.complete


def expected(ends: list[int], every: int, epochs: int) -> list[int]:
    """Of these, the first `every` or more epochs after the last, but for the end of the run."""
    made = [0]
    for end in ends:
        if end < epochs and end - made[-1] >= every:
            made.append(end)
    return made[1:]


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_the_word_that_the_end_is_near_makes_a_checkpoint_at_the_next_average(data: Any) -> None:
    """Where none would have come for long; what goes on from it trains the rest, once."""
    draw = data.draw
    name = draw(st.sampled_from(sorted(POLICIES)))
    policy = POLICIES[name](**accepted(name, anchor=draw(st.integers(1, 4))))
    blocking, every = draw(st.booleans()), draw(st.sampled_from([0, 1000]))
    world = World(
        size=draw(st.integers(2, 4)), samples=120, batch=4, epochs=4, blocking=blocking, in_step=blocking,
        checkpoints=Checkpointing(every, "epochs", 1e6),
    )  # fmt: skip
    costs = Costs(lambda rank, step: 0.01, copy_s=0.005, wire_s=0.003)
    run = Simulation(policy, world, costs)
    told_at = draw(st.floats(0.0, 0.4))
    run.later(told_at, run._coordinate, Ending(0.0))
    records = run.run().records
    published = [index for index, (_, record) in enumerate(records) if isinstance(record, Publish)]
    assert run.status == "ok"
    assert all(records[index][0] >= told_at for index in published)
    if not every:
        assert not published
        return
    closed = [at for at, record in records if isinstance(record, RoundClosed) and at > told_at]
    if len(closed) > world.size + 2:  # else the run ended with it
        assert published
    for index in published[:2]:
        order = records[index][1]
        assert isinstance(order, Publish)
        before = merged(records[:index])
        rest = Simulation(policy, world, costs)
        rest.coordinator = Coordinator.start(policy, world, 0.0, order.coordinator)
        assert before.total() == order.coordinator.samples
        assert set((before + merged(rest.run().records)).values()) == {1}


@settings(max_examples=examples(15), deadline=None)
@given(size=st.integers(2, 4), step_s=st.sampled_from([0.003, 0.05, 0.9]), told_at=st.floats(0.1, 9.0))
def test_a_checkpoint_before_the_end_waits_for_no_epoch(size: int, step_s: float, told_at: float) -> None:
    """Where gradients are averaged inside steps: a scheduler gives 12 s, and an epoch, which is one grant, lasts 60 here."""
    samples = int(60 / step_s) * size
    world = World(size, samples, 1, 1, blocking=True, in_step=True, checkpoints=Checkpointing(1, "epochs", 1e6))
    costs = Costs(lambda rank, step: step_s * (1 + 0.3 * rank), latency_s=0.002, wire_s=0.001, report_s=0.02)
    run = Simulation(POLICIES["sync"](), world, costs, watch=_until_published)
    run.later(told_at, run._coordinate, Ending(0.0))
    with pytest.raises(StopIteration):
        run.run()
    at, order = run.records[-1]
    assert told_at < at < told_at + 10
    done = order.coordinator.samples
    assert merged(run.records).total() == done
    assert [record.stop for _, record in run.records if isinstance(record, Shorten)] == [done] * size
    assert done % size == 0


@pytest.mark.parametrize("step_s", [0.001, 0.005, 0.02])
@pytest.mark.parametrize("latency_s", [0.002, 0.04])
def test_an_end_announced_in_a_pause_is_far_enough_ahead(step_s: float, latency_s: float) -> None:
    """Such as the first step, which compiles."""
    world = World(2, 60_000, 1, 1, blocking=True, in_step=True, checkpoints=Checkpointing(1, "epochs", 1e6))
    costs = Costs(lambda rank, step: 5.0 if not step else step_s, latency_s=latency_s, wire_s=1e-4, report_s=0.02)
    run = Simulation(POLICIES["sync"](), world, costs, watch=_until_published)
    run.later(1.0, run._coordinate, Ending(0.0))
    with pytest.raises(StopIteration):
        run.run()
    assert run.records[-1][0] < 5 + 4


@settings(max_examples=examples(90), deadline=None)
@given(
    size=st.integers(2, 4),
    step_s=st.sampled_from([0.003, 0.05, 0.9]),
    latency_s=st.sampled_from([0.002, 0.04]),
    kind=st.sampled_from(["crash", "stall"]),
    told_at=st.floats(1.3, 3.0),
    delay=st.floats(-1.2, 1.0),
    notice_s=st.sampled_from([0.0, 0.3, 0.4]),
    restarts=st.sampled_from([0, None]),
    torn=st.integers(0, 15),
)
@example(size=3, step_s=0.9, latency_s=0.04, kind="stall", told_at=2.1, delay=1.0, notice_s=0.0, restarts=0, torn=0)
def test_a_rank_that_is_lost_at_the_same_moment_costs_no_checkpoint(
    size: int,
    step_s: float,
    latency_s: float,
    kind: str,
    told_at: float,
    delay: float,
    notice_s: float,
    restarts: int | None,
    torn: int,
) -> None:
    """The others find out, meet again and save at once: no order that ends a grant reaches a rank too late, and the rest is
    trained once."""
    samples = min(int(60 / step_s), 2000) * size  # of which at most 1,700 steps are done or granted by then
    world = World(
        size, samples, 1, 1, blocking=True, in_step=True, deadline_s=5.0, tolerate_loss=True, restarts=restarts,
        checkpoints=Checkpointing(1, "epochs", 1e6),
    )  # fmt: skip
    costs = Costs(lambda rank, step: step_s * (1 + 0.1 * rank), latency_s=latency_s, wire_s=0.001, report_s=0.02)
    costs = replace(costs, notice_s=notice_s)
    policy = POLICIES["sync"]()
    run = Simulation(policy, world, costs, watch=_until_published, torn=lambda rank: bool(torn >> rank & 1))
    run.later(told_at, run._coordinate, Ending(0.0))
    run.later(told_at + delay, run.befall, size - 1, kind)
    with pytest.raises(StopIteration):
        run.run()
    at, order = run.records[-1]
    assert told_at < at < told_at + 10
    before = merged(run.records)
    assert before.total() == order.coordinator.samples
    rest = Simulation(policy, world, costs)
    rest.coordinator = Coordinator.start(policy, world, 0.0, order.coordinator)
    both = before + merged(rest.run().records)
    assert both.total() == samples
    assert set(both.values()) == {1}


def _until_published(run: Simulation) -> None:
    if isinstance(run.records[-1][1], Publish):
        raise StopIteration


def beating(policy: str, in_step: bool, files_s: float, **happens: Any) -> Simulation:
    """A run whose ranks need `files_s` for every file, and give a sign of life every second for five deadlines of it."""

    def beat(rank: int, kind: str) -> None:
        for second in range(1, min(int(files_s), 25) if kind in ("checkpoint", "copy") else 0):
            run.later(second, run._coordinate, Alive(0.0, rank))

    checkpoints = Checkpointing(20 if in_step else 1, "averages", 0.0)
    world = World(3, 600, 4, 1, True, in_step, 5.0, tolerate_loss=True, restarts=1, checkpoints=checkpoints)
    costs = Costs(lambda rank, step: 0.01 * (1 + rank), copy_s=files_s)
    run = Simulation(POLICIES[policy](), world, costs, began=beat, **happens)
    return run.run()


@pytest.mark.parametrize(("policy", "in_step"), [("sync", True), ("cadence", False)])
def test_a_checkpoint_may_take_five_deadlines(policy: str, in_step: bool) -> None:
    """The others waited in a collective for two of them, which was the end of the run."""
    run = beating(policy, in_step, 20.0)
    assert run.aborted is None, run.aborted
    assert any(isinstance(order, Publish) for _, order in run.records)
    endless = beating(policy, in_step, 1000.0)
    assert endless.aborted is not None
    assert "silent for" in endless.aborted.reason
    assert endless.now < 100.0


def test_a_state_that_is_sent_to_a_rank_may_take_five_deadlines() -> None:
    """Gradients were to be exchanged meanwhile, it seemed, and the run was over."""
    run = beating("sync", True, 20.0, deaths=((0.05, 2),))
    assert run.aborted is None, run.aborted
    assert any(isinstance(order, LoadState) for _, order in run.records)
