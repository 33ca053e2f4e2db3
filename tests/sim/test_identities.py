"""What the controller must come down to where there is nothing to adapt to."""

from __future__ import annotations

import pytest

from ddp.core.messages.events import RoundClosed
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.settings.world import World
from ddp.sim import Costs, simulate


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("anchor", [4, 10])
def test_equal_speeds_make_el_che_the_fixed_cadence(blocking: bool, ranks: int, anchor: int) -> None:
    """Every rank does `anchor` steps in every window, in whole windows to the end of the epoch."""
    windows = 12
    world = World(ranks, windows * ranks * anchor * 8, 8, 2, blocking=blocking, in_step=False)
    costs = Costs(lambda rank, step: 0.01, latency_s=0.0, wire_s=1e-5, reduce_s=1e-5)
    played = simulate(Cadence(anchor=anchor), world, costs=costs)
    closed = [record for _, record in played.records if isinstance(record, RoundClosed)]
    if blocking:
        assert [event.steps for event in closed] == [(anchor,) * ranks] * (2 * windows)
    plans = {(plan.anchor, plan.counts) for plan in [played.coordinator.plan] if plan is not None}
    assert plans == {(anchor, (anchor,) * ranks)}


def test_async_at_equal_speeds_keeps_equal_counts() -> None:
    world = World(3, 3 * 10 * 8 * 20, 8, 1, blocking=False, in_step=False)
    played = simulate(Async(anchor=10), world, costs=Costs(lambda rank, step: 0.01, latency_s=0.0, reduce_s=1e-5))
    assert played.coordinator.plan is not None
    assert played.coordinator.plan.counts == (10, 10, 10)
