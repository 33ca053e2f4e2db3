"""`qsr`: how long its windows are for a learning rate, and that at a constant one it is a cadence of fixed length."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import RoundClosed
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.qsr import Qsr
from ddp.core.policies.windows import WindowState
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from tests.slow import few


def closed(lr: float) -> RoundClosed:
    nothing = (0.0, 0.0)
    return RoundClosed(0.0, 0, (4, 4), (0.4, 0.4), 0.0, nothing, nothing, (False, False), lr=lr)


def anchors(policy: Qsr, rates: list[float], steps: int = 10_000) -> list[int]:
    """The steps of each rank after windows at these rates; the ranks are alike."""
    state, plan = policy.init(World(2, steps, 1, 1, blocking=True, in_step=False))
    found = [plan.anchor]
    for lr in rates:
        state, _ = policy.update(state, closed(lr))
        assert isinstance(state, WindowState)
        assert state.plan.counts == (state.plan.anchor,) * 2
        found.append(state.plan.anchor)
    return found


def test_windows_are_the_squared_ratio_and_never_below_the_base() -> None:
    assert anchors(Qsr(base=4, alpha=0.1), [0.1, 0.05, 0.04, 0.02, 0.01]) == [4, 4, 4, 6, 25, 100]


def test_windows_stay_at_the_base_while_the_rate_rises_or_is_not_known() -> None:
    # of the first rate nobody knows whether it rises: taken at its word, the tiny one of a warm-up made an epoch's window
    assert anchors(Qsr(base=3, alpha=0.1), [0.01, 0.02, 0.03, 0.02]) == [3, 3, 3, 3, 25]
    assert anchors(Qsr(base=3, alpha=0.1), [0.0, 0.0, 0.01, 0.01]) == [3, 3, 3, 3, 100]


def test_a_window_is_an_epoch_at_most() -> None:
    assert anchors(Qsr(alpha=1e6), [1e-6, 1e-6], steps=300) == [4, 4, 150]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [({"base": 0}, "base=0"), ({"alpha": 0.0}, "alpha=0.0"), ({"max_batch_diff": -1}, "max_batch_diff=-1")],
)
def test_what_cannot_be_is_refused(settings: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Qsr(**settings)


def played(policy: Qsr | Cadence, blocking: bool, rate: Callable[[float], float]) -> Simulation:
    world = World(3, 1200, 8, 3, blocking=blocking, in_step=False)
    costs = Costs(
        lambda rank, step: 0.01 * (1 + rank) * (1 + (7 * step + rank) % 5 / 20), evaluate_s=lambda rank: 0.02, rate=rate
    )
    return simulate(policy, world, costs=costs)


@pytest.mark.parametrize(("blocking", "lead", "steps"), few([True, False], [None, 0, 3], [1, 5, 12]))
def test_at_a_constant_rate_it_is_a_cadence_of_fixed_length(blocking: bool, lead: int | None, steps: int) -> None:
    fixed = Cadence(anchor=steps, min_anchor=steps, max_anchor=steps, max_batch_diff=lead, guard="none")
    rule = Qsr(base=steps, alpha=0.1, max_batch_diff=lead)
    runs = [played(policy, blocking, lambda fraction: 0.1) for policy in (rule, fixed)]
    assert runs[0].records == runs[1].records, "every command, at every moment"
    assert any(isinstance(record, RoundClosed) for _, record in runs[0].records)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_warm_up_has_windows_of_the_base(blocking: bool) -> None:
    run = played(Qsr(base=2, alpha=0.1), blocking, lambda fraction: 0.1 * min(fraction / 0.2, 1.0))
    assert {record.anchor for _, record in run.records if isinstance(record, Plan)} == {2}


def test_windows_grow_over_a_schedule_that_falls() -> None:
    run = played(Qsr(base=2, alpha=0.05), True, lambda fraction: 0.1 * (1 - fraction))
    anchors = [record.anchor for _, record in run.records if isinstance(record, Plan)]
    assert anchors == sorted(anchors)
    assert anchors[0] == 2
    assert anchors[-1] > 10
    lrs = [record.lr for _, record in run.records if isinstance(record, RoundClosed)]
    assert lrs == sorted(lrs, reverse=True)
    assert 0 < lrs[-1] < lrs[0] <= 0.1, "the simulator tells real rates"
