"""Where the controller decides otherwise than its reference: `max_batch_diff`, and how far the anchor comes down."""

from __future__ import annotations

import pytest

from benchmarks.choices import Stepwise
from benchmarks.controller import Case, closed, plans
from ddp.core.policies.cadence import Cadence


@pytest.mark.parametrize("blocking", [True, False])
def test_a_limit_of_the_lead_bounds_it_and_one_of_the_change_does_not(blocking: bool) -> None:
    """The first is what `max_batch_diff` means here; a window cut at the end of an epoch may have a step more."""
    case = Case((0.01, 0.04), blocking, windows=20)

    def lead(policy: Cadence) -> int:
        return max(max(window.steps) - min(window.steps) for window in closed(case.play(policy))[2:])

    assert lead(Cadence(max_batch_diff=5)) <= 6
    assert lead(Stepwise(change=5)) > 20


def test_the_anchor_rests_where_it_began_unless_a_lower_floor_is_given() -> None:
    """An average that costs next to nothing asks for none but the shortest windows."""
    case = Case((0.01, 0.02), blocking=False, wire_s=0.0, windows=40)
    assert min(plan.anchor for plan in plans(case.play(Cadence()))) == 10
    assert min(plan.anchor for plan in plans(case.play(Cadence(min_anchor=1)))) == 1
