"""The controller by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core import elche
from ddp.core.elche import ElChe, ElCheSettings


def windows(settings: ElCheSettings, step_s: list[float], times: int, sync_s: float = 0.0, most: int = 10_000) -> ElChe:
    state = elche.start(settings, len(step_s))
    for _ in range(times):
        busy = tuple(n * s for n, s in zip(state.counts, step_s, strict=True))
        state = elche.measure(state, state.counts, busy)
        state = elche.tune(settings, state, sync_s, max(busy))
        state = elche.recount(settings, state, most)
    return state


def test_the_first_window_is_equal_and_calibrates() -> None:
    assert elche.start(ElCheSettings(), 3).counts == (10, 10, 10)
    assert windows(ElCheSettings(), [0.01, 0.02, 0.04], 1).counts == (40, 20, 10)


def test_counts_follow_the_speeds() -> None:
    assert windows(ElCheSettings(anchor=4), [0.01, 0.025], 3).counts == (10, 4)


def test_a_change_of_speed_is_followed_within_three_windows() -> None:
    settings = ElCheSettings()
    state = windows(settings, [0.01, 0.01], 5)
    for _ in range(3):
        busy = (state.counts[0] * 0.01, state.counts[1] * 0.02)
        state = elche.recount(settings, elche.measure(state, state.counts, busy), 10_000)
    assert abs(state.counts[0] / state.counts[1] - 2) < 0.2


def test_a_small_change_of_speed_is_applied_in_the_end() -> None:
    """The dead zone of the first version made a change below 10 % a barrier wait for ever."""
    state = windows(ElCheSettings(anchor=20), [0.01, 0.0108], 6)
    assert state.counts == (22, 20)


def test_the_anchor_grows_until_the_average_is_cheap_and_not_beyond() -> None:
    settings = ElCheSettings(overhead_target=0.1)
    state = windows(settings, [0.001, 0.001], 30, sync_s=0.01)
    assert 0.01 / (state.anchor * 0.001) <= 0.1
    assert state.anchor <= 210


def test_the_anchor_comes_down_again_but_not_below_its_floor() -> None:
    settings = ElCheSettings(anchor=10)
    high = ElChe(50, (50, 50), (0.01, 0.01), (0, 0))
    assert elche.tune(settings, high, 0.0001, 0.5).anchor == 49
    for _ in range(100):
        high = elche.tune(settings, high, 0.0001, 0.5)
    assert high.anchor == 10
    assert elche.nudge_down(high, 0.5).anchor == 5


def test_a_window_never_exceeds_an_epoch() -> None:
    state = windows(ElCheSettings(), [0.001, 0.0025], 20, sync_s=1.0, most=45)
    assert sum(state.counts) <= 45
    assert state.anchor <= 45


def test_a_rank_without_steps_keeps_its_speed() -> None:
    state = windows(ElCheSettings(), [0.01, 0.02], 2)
    after = elche.measure(state, (10, 0), (0.1, 0.0))
    assert after.step_s[1] == state.step_s[1]


def test_max_batch_diff_bounds_the_lead() -> None:
    assert windows(ElCheSettings(max_batch_diff=3), [0.01, 0.1], 3).counts == (13, 10)
    assert windows(ElCheSettings(max_batch_diff=0), [0.01, 0.1], 3).counts == (10, 10)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), st.integers(0, 400))
def test_clamp_total_keeps_proportions_and_the_total(counts: list[int], total: int) -> None:
    clamped = elche.clamp_total(tuple(counts), total)
    assert sum(clamped) == min(total, sum(counts))
    for old, new in zip(counts, clamped, strict=True):
        assert abs(new - old * min(1, total / sum(counts))) < 1


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 500))
def test_an_epoch_falls_into_windows_of_equal_size(counts: list[int], left: int) -> None:
    sizes = []
    while left:
        window = elche.fit(tuple(counts), left)
        assert all(new <= old for old, new in zip(counts, window, strict=True)), "bounds are kept"
        sizes.append(min(sum(window), left))
        left -= sizes[-1]
    assert max(sizes) - min(sizes) <= 1, "no sliver at the end"


@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=8), st.integers(1, 30), st.floats(0, 2.0))
def test_invariants(step_s: list[float], anchor: int, sync_s: float) -> None:
    settings = ElCheSettings(anchor=anchor)
    state = windows(settings, step_s, 6, sync_s=sync_s, most=500)
    assert all(count >= 1 for count in state.counts)
    assert sum(state.counts) <= 500 + len(step_s), "but for the one step that every rank has"
    assert 1 <= state.anchor <= settings.max_anchor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchor": 0}, "anchor=0"),
        ({"anchor": 300}, "max_anchor=200"),
        ({"min_anchor": 500}, "min_anchor=500"),
        ({"overhead_target": 0.9}, "overhead_target=0.9"),
        ({"max_batch_diff": -1}, "max_batch_diff=-1"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ElCheSettings(**options)  # type: ignore[arg-type]
