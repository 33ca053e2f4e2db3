"""The controller by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.window_sizes import controller
from ddp.core.window_sizes.controller import ElCheSettings
from ddp.core.window_sizes.speeds import Speed, follow
from tests.core.turned import turn, window, windows


def test_the_first_window_is_equal_and_calibrates() -> None:
    assert controller.start(ElCheSettings(), 3, 10_000).counts == (10, 10, 10)
    assert windows(ElCheSettings(), [0.01, 0.02, 0.04], 1).counts == (40, 20, 10)


def test_counts_follow_the_speeds() -> None:
    assert windows(ElCheSettings(anchor=4), [0.01, 0.025], 3).counts == (10, 4)


@pytest.mark.parametrize("smoothing", ["adaptive", "trust"])
def test_phases_follow_each_other(smoothing: str) -> None:
    phases = [windows(ElCheSettings(smoothing=smoothing), [0.01, 0.02], n).phase for n in (0, 1, 4, 5, 19, 20)]
    assert phases == ["probe", "warmup", "warmup", "stable", "stable", "mature"]


def test_a_hint_replaces_the_equal_windows() -> None:
    settings = ElCheSettings(speed_hint=(1.0, 0.25))
    assert controller.start(settings, 2, 10_000).counts == (40, 10)
    assert windows(settings, [0.01, 0.01], 1).counts == (10, 10), "measured speeds replace the hint"
    extreme = controller.start(ElCheSettings(anchor=1, speed_hint=(1.0, 1e-6)), 2, 10_000)
    assert extreme.counts == (64, 1), "ranks are taken for no more unequal than 64"


def test_fixed_ratios_stay_whatever_is_measured() -> None:
    settings = ElCheSettings(partition_ratios=(3.0, 1.0))
    assert windows(settings, [0.04, 0.01], 8).counts == (30, 10)


def test_fixed_ratios_are_taken_as_they_are() -> None:
    """They were cut to 64 to 1 without a word."""
    settings = ElCheSettings(anchor=2, partition_ratios=(1000.0, 1.0))
    assert controller.start(settings, 2, 100_000).counts == (2000, 2)
    assert controller.weights(settings, controller.start(settings, 2, 100_000)) == pytest.approx(
        (1000 / 1001, 1 / 1001)
    )
    extreme = ElCheSettings(partition_ratios=(1e12, 1e-12))
    assert windows(extreme, [0.01, 0.01], 8).counts == (9999, 1), "an epoch, and a step for every rank"


def test_a_small_change_of_speed_is_applied_in_the_end() -> None:
    """The dead zone of the first version made a change below 10 % a barrier wait for ever."""
    settings = ElCheSettings(anchor=25)
    state = windows(settings, [0.01, 0.01], 6)
    for _ in range(12):
        state = turn(settings, state, [0.01, 0.0104])
    assert state.counts[0] == state.counts[1] + 1


def test_speeds_that_hardly_move_leave_the_counts_alone() -> None:
    settings = ElCheSettings(anchor=20)
    state = windows(settings, [0.01, 0.02], 6)
    before = state.counts
    for wobble in (1.01, 0.99, 1.02, 0.98):
        state = turn(settings, state, [0.01 * wobble, 0.02])
        assert state.counts == before


def test_the_anchor_grows_until_the_average_is_cheap_and_not_beyond() -> None:
    settings = ElCheSettings(overhead_target=0.1)
    state = windows(settings, [0.001, 0.001], 30, sync_s=0.01)
    assert 0.01 / (state.anchor * 0.001) <= 0.1
    assert state.anchor <= 120


def test_in_warm_up_the_anchor_grows_only_above_twice_the_target() -> None:
    settings = ElCheSettings(overhead_target=0.1)
    assert windows(settings, [0.01, 0.01], 4, sync_s=0.015).anchor == 10
    assert windows(settings, [0.01, 0.01], 5, sync_s=0.015).anchor == 17
    assert windows(settings, [0.01, 0.01], 1, sync_s=0.025).anchor == 20, "twofold at most at a time"


def test_the_anchor_begins_and_stays_between_its_bounds() -> None:
    """A lower bound above the first anchor was accepted, and ignored."""
    settings = ElCheSettings(anchor=10, min_anchor=50, max_anchor=80, overhead_target=0.1)
    assert controller.start(settings, 2, 10_000).counts == (50, 50)
    assert windows(settings, [0.01, 0.01], 30, sync_s=1e-4).anchor == 50
    dear = windows(settings, [0.01, 0.01], 30, sync_s=1.0)
    assert dear.anchor == 80
    for _ in range(40):
        dear = turn(settings, dear, [0.01, 0.01], 1e-4)
    assert dear.anchor == 50
    low = ElCheSettings(anchor=40, min_anchor=5)
    assert controller.start(low, 2, 10_000).counts == (40, 40)
    assert windows(low, [0.01, 0.01], 40, sync_s=1e-4).anchor == 5


def test_what_a_guard_took_below_the_bound_grows_back_to_it_at_least() -> None:
    settings = ElCheSettings(anchor=40, overhead_target=0.1)
    state = controller.nudge_down(windows(settings, [0.01, 0.01], 6, sync_s=1e-4), 0.1)
    assert state.anchor == 4
    assert controller.tune(settings, replace(state, costs=(0.006,))).anchor == 40
    assert controller.tune(settings, replace(state, costs=(0.006,)), may_grow=False).anchor == 4


def test_a_guard_can_forbid_growth_alone() -> None:
    settings = ElCheSettings(overhead_target=0.1)
    state = controller.measure(settings, windows(settings, [0.01, 0.01], 6), window((10, 10), [0.01, 0.01], 0.05))
    state = replace(state, costs=(0.05,))
    assert controller.tune(settings, state, may_grow=False).anchor == 10
    assert controller.tune(settings, state).anchor == 20
    assert controller.nudge_down(state, 0.5).anchor == 5


def test_waiting_counts_up_to_a_step_and_not_before_the_counts_fit() -> None:
    settings, state = ElCheSettings(), controller.start(ElCheSettings(), 2, 10_000)
    for _ in range(3):
        state = controller.measure(settings, state, window((10, 10), [0.01, 0.02], 0.001))
    assert state.costs[:2] == (0.001, 0.001)
    # Rank 0 has two thirds of the cohort's speed, and waited ten of its steps.
    assert state.costs[2] == pytest.approx(0.001 + 0.01 * 2 / 3)


def test_the_anchor_rank_is_kept_among_near_equals() -> None:
    settings = ElCheSettings()
    state = windows(settings, [0.010, 0.0101, 0.005], 6)
    assert state.rank == 0, "the lowest of the slowest"
    for _ in range(6):
        state = turn(settings, state, [0.010, 0.0105, 0.005])
    assert state.rank == 0
    for _ in range(6):
        state = turn(settings, state, [0.010, 0.02, 0.005])
    assert state.rank == 1


def test_a_lost_rank_is_forgotten() -> None:
    settings = ElCheSettings()
    state = windows(settings, [0.01, 0.04], 6)
    for _ in range(5):
        state = controller.measure(settings, state, window((40, 0), [0.01, 0.04]))
    assert state.speeds[1] == Speed()
    assert state.rank == 0


def test_an_anchor_may_be_of_any_size() -> None:
    """Every end of a step of the longest window was listed: gigabytes."""
    settings = ElCheSettings(anchor=10**9, max_anchor=10**9)
    assert sum(windows(settings, [0.01, 0.025], 4, most=10_000).counts) == 10_000
    assert windows(settings, [0.01, 0.01], 4, most=10**12).counts == pytest.approx((1e9, 1e9), rel=1e-8)
    fast, slow = windows(settings, [0.01, 0.0314159], 4, most=10**12).counts
    assert fast / slow == pytest.approx(3.14159, rel=1e-6)
    assert 10**9 <= slow <= 1.25 * 10**9


def test_one_hiccup_does_not_make_a_huge_window() -> None:
    """One step of two seconds among ten of 10 ms: the other rank was given twenty times as many."""
    settings = ElCheSettings()
    state = windows(settings, [0.01, 0.01], 6)
    state = turn(settings, state, [0.01, 0.209])
    assert state.counts == (10, 10)
    state = turn(settings, turn(settings, state, [0.01, 0.08]), [0.01, 0.08])
    assert state.counts == (80, 10), "twice in a row is no hiccup"


def test_a_window_never_exceeds_an_epoch() -> None:
    state = windows(ElCheSettings(), [0.001, 0.0025], 20, sync_s=1.0, most=45)
    assert sum(state.counts) == 45
    assert state.anchor <= 45


@pytest.mark.parametrize("smoothing", ["adaptive", "trust"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_and_double_speed_are_followed(smoothing: str, factor: float) -> None:
    speed = Speed()
    for _ in range(6):
        speed = follow(speed, 10, 0.1, smoothing)
    for _ in range(2 if smoothing == "adaptive" else 5):
        speed = follow(speed, 10, 0.1 * factor, smoothing)
    assert speed.step_s == pytest.approx(0.01 * factor, rel=0.02)


def test_max_batch_diff_bounds_the_lead() -> None:
    assert windows(ElCheSettings(max_batch_diff=3), [0.01, 0.1], 3).counts == (13, 10)
    assert windows(ElCheSettings(max_batch_diff=0), [0.01, 0.1], 3).counts == (10, 10)


@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=8), st.integers(1, 30), st.floats(0, 2.0))
def test_invariants(step_s: list[float], anchor: int, sync_s: float) -> None:
    settings = ElCheSettings(anchor=anchor)
    state = windows(settings, step_s, 6, sync_s=sync_s, most=500)
    assert all(count >= 1 for count in state.counts)
    assert sum(state.counts) <= 500
    assert 1 <= state.anchor <= settings.max_anchor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchor": 0}, "anchor=0"),
        ({"anchor": 300}, "max_anchor=200"),
        ({"min_anchor": 500}, "min_anchor=500"),
        ({"overhead_target": 0.9}, "overhead_target=0.9"),
        ({"max_batch_diff": -1}, "max_batch_diff=-1"),
        ({"smoothing": "ema"}, "smoothing='ema'"),
        ({"speed_hint": [1.0, 0.0]}, "speed_hint"),
        ({"partition_ratios": [1.0, 1e-13]}, "partition_ratios"),
        ({"min_anchor": 60, "max_anchor": 50}, "min_anchor=60"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElCheSettings(**options)
