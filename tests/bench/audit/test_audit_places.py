"""What the audit knows of places in the schedule from orders alone, in runs that lose ranks too."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bench.audit.audit_input import StepReport, reports_of
from bench.audit.documented.schedule_places import breaks, misplaced, out_of_turn, places
from bench.audit.reports import rates
from ddp.core.messages.commands import Pace, Restart, Train
from ddp.core.messages.events import Lost, Merged, Progress, Resumed
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from tests.sim.strategies import costs, examples, policies, scripts, small_worlds, suited


def itself(fraction: float) -> float:
    return fraction


TIMES = {"latency_s": 1e-4, "wire_s": 0.002, "reduce_s": 0.002, "report_s": 0.02}
COSTS = Costs(lambda rank, step: 0.01 * (1 + rank), **TIMES, start_s=lambda rank, life: 0.05, rate=itself)


def played(policy: str, blocking: bool, faults: tuple[Fault, ...], restarts: int = 0) -> list[Any]:
    made = POLICIES[policy]()
    in_step = blocking and made.every_step
    world = World(3, 400, 10, 3, blocking=blocking, in_step=in_step, deadline_s=60.0, tolerate_loss=True)
    world = replace(world, restarts=restarts)
    return [record for _, record in simulate(made, world, costs=COSTS, faults=faults).records]


def reported(records: list[Any]) -> list[StepReport]:
    return list(reports_of(records, 10))


def off(records: list[Any], epoch_callback: Any = None) -> list[str]:
    """What the audit says of the rates, if the schedule is `itself`."""
    order: Any = SimpleNamespace(misplaced="", reports=reported(records))
    task = SimpleNamespace(epoch_callback=epoch_callback)
    bench: Any = SimpleNamespace(task=task, rates=lambda seen: [min(seen / 1200, 1.0)])
    return [item.line for item in rates(order, bench) if item.outcome == "different"]


def ahead(records: list[Any], since: type, ranks: tuple[int, ...], more: float) -> list[Any]:
    """The records if ranks were ahead in the schedule from a record of a kind on."""
    begin = next(at for at, record in enumerate(records) if isinstance(record, since))

    def moved(at: int, record: Any) -> Any:
        late = isinstance(record, Progress) and at > begin and record.rank in ranks
        return replace(record, lr=min(max(record.lr + more, 0.0), 1.0)) if late else record

    return [moved(at, record) for at, record in enumerate(records)]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("faults", [(), (Fault(1, 5, "crash"),), (Fault(2, 20, "crash"), Fault(0, 25, "crash"))])
def test_nobody_is_told_of_what_cannot_be(policy: str, blocking: bool, faults: tuple[Fault, ...]) -> None:
    assert misplaced(played(policy, blocking, faults)) == ""


def test_a_rank_that_is_told_of_less_is_named() -> None:
    records = played("cadence", True, (Fault(2, 20, "crash"),))
    merged = next(place for place, record in enumerate(records) if isinstance(record, Merged))
    late = next(place for place, record in enumerate(records) if place > merged and isinstance(record, Train))
    records[late] = replace(records[late], seen=1)
    assert "was told that 1 samples had been seen" in misplaced(records)


@pytest.mark.parametrize("policy", ["cadence", "async"])
def test_a_rank_that_is_told_of_more_is_named(policy: str) -> None:
    records = played(policy, False, (Fault(2, 20, "crash"),))
    for kind in (Train, Pace):
        late = max(place for place, record in enumerate(records) if isinstance(record, kind))
        more = [*records[:late], replace(records[late], seen=2 * records[late].seen), *records[late + 1 :]]
        assert "are possible by then" in misplaced(more)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_epoch_is_granted_from_its_beginning_to_its_end(policy: str, blocking: bool) -> None:
    assert out_of_turn(played(policy, blocking, ())) == ""


def test_a_grant_out_of_turn_is_named() -> None:
    records = played("cadence", True, ())
    first, other = [place for place, record in enumerate(records) if isinstance(record, Train)][:2]
    records[first], records[other] = (
        replace(records[first], chunk=records[other].chunk),
        replace(records[other], chunk=records[first].chunk),
    )
    assert out_of_turn(records).endswith("of epoch 0, but 0 is next")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("blocking", "in_step"), [(True, False), (True, True), (False, False)])
@settings(max_examples=examples(90), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_place_of_a_report_is_where_its_rank_was(blocking: bool, in_step: bool, data: Any) -> None:
    world = data.draw(small_worlds(blocking, in_step, restarts=data.draw(st.sampled_from([0, None]))))
    made, cost = data.draw(policies("sync" if in_step else "")), replace(data.draw(costs()), rate=itself)
    script = data.draw(st.one_of(st.just(()), scripts(world)))
    torn = data.draw(st.integers(0, 15))
    run = Simulation(suited(made, world), world, cost, faults=script, torn=lambda rank: bool(torn >> rank & 1)).run()
    assume(run.status == "ok")
    records: list[Any] = [record for _, record in run.records]
    reports = [record for record in records if isinstance(record, Progress)]
    for report, place in zip(reports, places(records, world.batch), strict=True):
        if place is not None:
            low, high = place
            assert low - 1e-6 <= report.lr * world.samples * world.epochs <= high + 1e-6


@pytest.mark.parametrize(("policy", "blocking"), [("cadence", True), ("sync", True), ("async", False)])
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_rank_that_leaves_the_schedule_behind_a_loss_is_named(policy: str, blocking: bool, restarts: int) -> None:
    records = played(policy, blocking, (Fault(2, 5, "crash"),), restarts)
    assert off(records) == []
    for since, ranks, more in ((Lost, (0,), 0.25), (Restart, (2,), -0.25))[: 1 + restarts]:
        (line,) = off(ahead(records, since, ranks, more))
        assert "a learning rate of" in line


@pytest.mark.parametrize(("policy", "blocking"), [("cadence", True), ("async", False)])
def test_a_rank_that_begins_the_schedule_again_in_a_resumed_run_is_named(policy: str, blocking: bool) -> None:
    records = played(policy, blocking, ())
    resumed = [Resumed(0.0, 0, 0, 0, "a run"), *records]
    assert off(resumed) == []
    assert off([record for record in records if isinstance(record, Progress)] + resumed) == []  # of the run before
    assert len(off(ahead(resumed, Resumed, (0, 1, 2), -0.25))) == 1


def test_a_rank_that_is_late_in_half_of_an_async_run_is_named() -> None:
    records = played("async", False, ())
    half = [replace(r, lr=0.5 + (r.lr - 0.5) / 2) if isinstance(r, Progress) and r.lr > 0.5 else r for r in records]
    assert off(records) == []
    assert len(off(half)) == 1
    assert off(half, epoch_callback=print) == []  # which may set rates


def test_places_where_the_group_changed_are_known() -> None:
    records = played("sync", True, (Fault(2, 20, "crash"), Fault(0, 25, "crash")))
    assert list(breaks(records)) == [400 + 6 * 30, 400 + 11 * 30]
    assert list(breaks([Resumed(0.0, 0, 1, 400, ""), *records])) == [400, 580, 730]
    assert list(breaks(played("sync", True, ()))) == []
