"""How far a rank gets ahead of the slowest where nobody blocks, and what is planned once a rank is lost."""

from __future__ import annotations

from typing import Any

import pytest

from ddp.core.messages.commands import Drop, Plan
from ddp.core.messages.events import RoundClosed
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from tests.sim.invariants import Invariants

STEP_S = (0.01, 0.1, 0.04)


class Lead:
    """The largest lead of a rank over another since they laid down their replicas, by what the ranks themselves did."""

    def __init__(self) -> None:
        self.most = 0

    def __call__(self, played: Simulation) -> None:
        if len({rank.after for rank in played.ranks}) == 1:
            steps = [rank.steps for rank in played.ranks]
            self.most = max(self.most, max(steps) - min(steps))


def led(policy: Any, samples: int = 360, epochs: int = 1) -> int:
    watch, size = Lead(), len(STEP_S)
    costs = Costs(lambda rank, step: STEP_S[rank], latency_s=1e-4)
    world = World(size, samples, 1, epochs, blocking=False, in_step=False)
    played = simulate(policy, world, costs=costs, watch=watch)
    assert played.status == "ok"
    assert len(played.trained) == samples * epochs
    return watch.most


@pytest.mark.parametrize("make", [Cadence, Async])
@pytest.mark.parametrize("lead", [0, 1, 3])
@pytest.mark.parametrize("dispatch", ["progressive", "partition"])
def test_no_rank_is_further_ahead_than_it_may_be(make: Any, lead: int, dispatch: str) -> None:
    """Counts alone were bounded: a fast rank was through with its window before a slow one had done a step of it."""
    assert led(make(max_batch_diff=lead, dispatch=dispatch)) == max(lead, 1)
    assert led(make(dispatch=dispatch)) > 20


@pytest.mark.parametrize("make", [Cadence, Async])
@pytest.mark.parametrize("ratios", [(1.0, 1.0, 1.0), (20.0, 1.0, 3.0), (1.0, 400.0, 1.0)])
def test_nobody_waits_for_a_rank_that_has_no_work(make: Any, ratios: tuple[float, ...]) -> None:
    """Every rank has its own part of an epoch and takes over nobody's: they are through with it at different times."""
    for lead in (0, 2):
        led(make(anchor=4, max_batch_diff=lead, partition_ratios=ratios), samples=120, epochs=2)


def test_who_waited_for_the_slowest_may_go_on_once_nobody_works() -> None:
    """The last samples were granted to the slowest: it was looked for anew, and who had waited for it was passed over."""
    for fast, slow in ((0.1, 0.04), (0.04, 0.1), (0.1, 0.05)):
        cost = Costs(lambda rank, step, each=(fast, slow): each[rank], latency_s=0.0, wire_s=0.0, reduce_s=0.3)
        world = World(2, 11, 2, 1, blocking=False, in_step=False)
        simulate(Async(anchor=1, max_batch_diff=1), world, costs=cost, watch=Invariants())


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("make", [Cadence, Async])
def test_nothing_is_planned_for_a_rank_that_is_lost(make: Any, blocking: bool) -> None:
    """The policy never learned of it: windows were cut as if it did its part, and its speed was that of the slowest."""
    world = World(3, 90, 1, 4, blocking=blocking, in_step=False, deadline_s=5.0, tolerate_loss=True)
    costs = Costs(lambda rank, step: STEP_S[rank])
    played = simulate(make(anchor=4), world, costs=costs, faults=(Fault(1, 3, "crash"),))
    assert played.status == "ok"
    records = [record for _, record in played.records]
    lost = next(index for index, record in enumerate(records) if isinstance(record, Drop))
    assert all(not record.lost for record in records[:lost] if isinstance(record, RoundClosed))
    assert all(record.lost == (1,) for record in records[lost:] if isinstance(record, RoundClosed))
    plans = [record for record in records[lost:] if isinstance(record, Plan)]
    assert plans
    for plan in plans:
        assert plan.counts[1] == 0
        assert plan.weights[1] == 0.0
        assert min(plan.counts[0], plan.counts[2]) >= 1
        assert plan.anchor <= plan.counts[2] <= plan.counts[0], "the slowest of those who are left"
