"""Auto-balancing: whatever the speeds, shares and shards keep their promises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.graph import balance
from ddp.graph.balance import CALIBRATION, EVERY, MIN_SHARE, cut, follow, shares, start

SPEEDS = st.lists(st.floats(0.001, 1000), min_size=1, max_size=12).map(tuple)


@given(SPEEDS)
def test_shares_are_in_proportion_and_nobody_starves(speeds: tuple[float, ...]) -> None:
    ratios = shares(speeds)
    assert sum(ratios) == pytest.approx(1)
    assert min(ratios) >= MIN_SHARE * (1 - 1e-9)
    free = [(ratio, speed) for ratio, speed in zip(ratios, speeds, strict=True) if ratio > MIN_SHARE * (1 + 1e-9)]
    for ratio, speed in free:
        assert ratio / speed == pytest.approx(free[0][0] / free[0][1])


def test_more_replicas_than_shares_of_the_least_size_get_equal_ones() -> None:
    assert shares((1.0,) * 40) == pytest.approx((1 / 40,) * 40)


@given(st.integers(0, 500), SPEEDS, st.sampled_from([1, 2]))
def test_shards_hold_every_sample_and_are_large_enough(total: int, speeds: tuple[float, ...], least: int) -> None:
    sizes = cut(total, shares(speeds), least)
    assert sum(sizes) == total
    assert all(size == 0 or size >= least for size in sizes) or total < least
    if total >= least * len(speeds):
        assert min(sizes) >= least
    if total >= 100 * len(speeds):
        for size, ratio in zip(sizes, shares(speeds), strict=True):
            assert abs(size - total * ratio) <= max(2, len(speeds))


@pytest.mark.parametrize(
    ("total", "ratios", "least", "sizes"),
    [
        (10, (0.5, 0.5), 1, (5, 5)),
        (11, (0.5, 0.5), 1, (6, 5)),
        (7, (1 / 3,) * 3, 1, (3, 2, 2)),
        (2, (1 / 3,) * 3, 1, (1, 1, 0)),
        (5, (0.25,) * 4, 2, (3, 2, 0, 0)),
        (3, (0.2, 0.8), 2, (0, 3)),
        (1, (0.5, 0.5), 2, (1, 0)),
        (20, (0.95, 0.05), 2, (18, 2)),
        (0, (0.5, 0.5), 1, (0, 0)),
    ],
)
def test_examples(total: int, ratios: tuple[float, ...], least: int, sizes: tuple[int, ...]) -> None:
    assert cut(total, ratios, least) == sizes


def test_equal_shares_while_calibrating_then_by_throughput_then_every_so_often() -> None:
    state, changed = start(2), []
    for step in range(1, CALIBRATION + 3 * EVERY + 1):
        speeds = (1.0, 0.5) if step <= CALIBRATION else (1.0, 0.25)
        samples = cut(100, state.ratios)
        busy = tuple(n / (1000 * speed) for n, speed in zip(samples, speeds, strict=True))
        after = follow(state, samples, busy)
        changed += [step] if after.ratios != state.ratios else []
        state = after
    assert changed == [CALIBRATION, CALIBRATION + EVERY], "the third look sees what it expected"
    assert state.ratios == pytest.approx((0.8, 0.2))
    assert state.throughput == pytest.approx((1.0, 0.25))


def test_smoothing() -> None:
    state = follow(start(2), (10, 10), (0.010, 0.010))
    assert state.throughput == pytest.approx((1.0, 1.0)), "the first one is taken as it is"
    state = follow(state, (10, 0), (0.005, 0.0))
    assert state.throughput == pytest.approx((0.3 * 2 + 0.7, 1.0)), "who had nothing to do keeps its own"


def played(seed: int, speeds: tuple[float, float], jitter: float) -> tuple[tuple[float, ...], int]:
    """Shares after 210 steps of log-normal jitter, and how often they changed."""
    draw, state, changes = random.Random(seed), start(2), 0
    for _ in range(CALIBRATION + 4 * EVERY):
        samples = cut(32, state.ratios)
        busy = tuple(n / v / 1000 * draw.lognormvariate(0, jitter) for n, v in zip(samples, speeds, strict=True))
        after = follow(state, samples, busy)
        changes, state = changes + (after.ratios != state.ratios), after
    return state.ratios, changes


@pytest.mark.parametrize("jitter", [0.05, 0.1, 0.2])
def test_jitter_is_not_followed_and_true_differences_are(jitter: float) -> None:
    assert sum(played(seed, (1.0, 1.0), jitter)[1] for seed in range(40)) <= 4
    for seed in range(40):
        assert 0.55 < played(seed, (1.0, 0.5), jitter)[0][0] < 0.8


def test_a_hint_counts_from_the_first_step_and_corrects_itself() -> None:
    state = start(2, (1.0, 0.25))
    assert state.ratios == pytest.approx((0.8, 0.2))
    for _ in range(CALIBRATION):
        state = follow(state, (80, 20), (0.080, 0.020))
    assert state.ratios == pytest.approx((0.5, 0.5))
    for wrong in ((1.0,), (1.0, 0.0), (1.0, float("inf"))):
        with pytest.raises(ValueError, match="a positive number for each of the 2 replicas"):
            start(2, wrong)


def test_the_documented_numbers() -> None:
    assert (balance.SMOOTHING, CALIBRATION, EVERY, MIN_SHARE) == (0.3, 10, 50, 0.05)
