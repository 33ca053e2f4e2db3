"""What the audit knows of places in the schedule from orders alone, in runs that lose ranks too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.audit.documented.schedule_places import breaks, misplaced, out_of_turn
from ddp.core.messages.commands import Pace, Train
from ddp.core.messages.events import Merged, Resumed
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, simulate

COSTS = Costs(lambda rank, step: 0.01 * (1 + rank), latency_s=1e-4, wire_s=0.002, reduce_s=0.002, report_s=0.02)


def played(policy: str, blocking: bool, faults: tuple[Fault, ...]) -> list[Any]:
    made = POLICIES[policy]()
    in_step = blocking and made.every_step
    world = World(3, 400, 10, 3, blocking=blocking, in_step=in_step, deadline_s=60.0, tolerate_loss=True)
    return [record for _, record in simulate(made, world, costs=COSTS, faults=faults).records]


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


def test_places_where_the_group_changed_are_known() -> None:
    records = played("sync", True, (Fault(2, 20, "crash"), Fault(0, 25, "crash")))
    assert list(breaks(records)) == [400 + 6 * 30, 400 + 11 * 30]
    assert list(breaks([Resumed(0.0, 0, 1, 400, ""), *records])) == [400, 580, 730]
    assert list(breaks(played("sync", True, ()))) == []
