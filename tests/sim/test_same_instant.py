"""Events of one instant enter as one: books and orders are, bit for bit, what each by itself makes of them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp.core.coordinator import Coordinator
from ddp.core.messages.events import Event
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from ddp.sim.timeline import EventQueue
from tests.policies import accepted
from tests.sim.strategies import costs, examples, policies, scripts, small_worlds, suited, worlds
from tests.slow import every

pytestmark = pytest.mark.timeout(600)


def alike(played: Simulation, at_once: bool = True) -> int:
    """Show the recorded events to a coordinator that decides after each, and all that come together to another one: after
    each the states are equal, and so are the orders. Return how many were entered without a decision. Unless `at_once`, all
    that is recorded comes together, as what a busy loop finds in its channels does."""
    each = together = Coordinator.start(played.policy, played.world, at=0.0)
    events = [record for _, record in played.records if isinstance(record, get_args(Event))]
    entered = place = 0
    while place < len(events) and not each.over:
        present = events[place : place + 256]
        if at_once:
            present = [event for event in present if event.at == events[place].at]
        together, count = together.enter(present)
        for event in present[:count]:
            each, outputs = each.decide(event)
            assert not outputs
        if not count:
            each, outputs = each.decide(events[place])
            together, others = together.update(events[place])
            assert outputs == others
        assert each == together
        entered, place = entered + count, place + max(count, 1)
    return entered


@settings(max_examples=examples(60), deadline=None)
@given(policies(), worlds(), costs(), st.booleans())
def test_any_schedule(policy: Any, world: World, cost: Costs, at_once: bool) -> None:
    alike(simulate(suited(policy, world), world, costs=cost), at_once)


@settings(max_examples=examples(60), deadline=None)
@given(policies(), costs(), st.data())
def test_any_schedule_with_faults(policy: Any, cost: Costs, data: st.DataObject) -> None:
    in_step = data.draw(st.booleans())
    world = data.draw(small_worlds(in_step or data.draw(st.booleans()), in_step, restarts=data.draw(st.integers(0, 1))))
    played = simulate(suited(policy, world), world, costs=cost, faults=data.draw(scripts(world)), limit_s=500.0)
    alike(played, data.draw(st.booleans()))


@pytest.mark.parametrize("name", every(2, sorted(POLICIES)))
def test_sixty_four_ranks(name: str) -> None:
    """Most events of such a run are entered at once; each rank is of one of three speeds."""
    world = World(64, 64 * 8 * 12, 8, 2, blocking=True, in_step=name == "sync")
    policy = POLICIES[name](**accepted(name, anchor=2, max_anchor=2))
    played = simulate(policy, world, costs=Costs(lambda rank, step: 1 + rank % 3 / 10, report_s=0.0))
    assert played.status == "ok"
    assert alike(played) > played.events / 3


@pytest.mark.parametrize("name", ["sync", "cadence", "async"])
@pytest.mark.parametrize("blocking", [True, False])
def test_records_are_those_of_a_run_in_which_each_enters_by_itself(name: str, blocking: bool) -> None:
    world = World(64, 64 * 8 * 12, 8, 1, blocking=blocking or name == "sync", in_step=name == "sync")
    policy = POLICIES[name](**accepted(name, anchor=2, max_anchor=4))
    cost = Costs(lambda rank, step: 1 + rank % 3 / 10)
    runs = [simulate(policy, world, costs=cost, watch=watch) for watch in (None, lambda played: None)]
    assert runs[0].records == runs[1].records
    assert runs[0].coordinator == runs[1].coordinator


def test_items_for_one_callback_share_a_call_until_it_begins() -> None:
    queue, calls = EventQueue(), list[list[int]]()

    def happen(items: list[int]) -> None:
        calls.append(items)
        if items[0] in (1, 3):
            queue.gather(queue.now, happen, items[0] + 10)

    queue.gather(1.0, happen, 1)
    queue.gather(1.0, happen, 2)
    queue.at(1.0, lambda: None)
    queue.gather(1.0, happen, 3)
    queue.run(2.0)
    assert calls == [[1, 2], [3, 11], [13]]
