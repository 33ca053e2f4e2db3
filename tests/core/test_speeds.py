"""Speeds by themselves: what is followed at once, and what only when a second window says the same."""

from __future__ import annotations

import pytest

from ddp.core.window_sizes.speeds import SMOOTHINGS, TRUST, Speed, follow


def after(step_s: list[float], smoothing: str = "adaptive") -> list[float]:
    """What is known after each window."""
    speed, known = Speed(), []
    for seconds in step_s:
        speed = follow(speed, 10, 10 * seconds, smoothing)
        known.append(speed.step_s)
    return known


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("odd", [0.209, 0.0009])
def test_one_window_far_off_is_not_believed(smoothing: str, odd: float) -> None:
    known = after([0.01, 0.01, odd, 0.01, 0.01, odd, 0.01], smoothing)
    assert known == pytest.approx([0.01] * 7)


def test_two_windows_that_agree_are_followed_as_far_as_both_go() -> None:
    assert after([0.01, 0.01, 0.08, 0.07]) == pytest.approx([0.01, 0.01, 0.01, 0.07])
    assert after([0.01, 0.01, 0.07, 0.09]) == pytest.approx([0.01, 0.01, 0.01, 0.07])
    assert after([0.08, 0.08, 0.01, 0.01]) == pytest.approx([0.08, 0.08, 0.08, 0.01])


def test_far_off_to_either_side_is_no_agreement() -> None:
    assert after([0.01, 0.01, 0.08, 0.001, 0.08]) == pytest.approx([0.01] * 5)


def test_up_to_four_times_is_followed_at_once() -> None:
    assert after([0.01, 0.039, 0.01]) == pytest.approx([0.01, 0.039, 0.01])


def test_of_the_first_two_windows_the_faster_one_counts() -> None:
    """The first holds what starting up takes; the second may hold a hiccup."""
    assert after([0.2, 0.01, 0.01]) == pytest.approx([0.2, 0.01, 0.01])
    assert after([0.01, 0.2, 0.01]) == pytest.approx([0.01, 0.01, 0.01])


def test_windows_without_a_step_leave_a_doubt_and_end_in_forgetting() -> None:
    doubting = follow(follow(Speed(), 10, 0.1, "adaptive"), 10, 2.0, "adaptive")
    assert follow(follow(doubting, 0, 0.0, "adaptive"), 10, 2.0, "adaptive").step_s == pytest.approx(0.2)
    for _ in range(TRUST):
        doubting = follow(doubting, 0, 0.0, "adaptive")
    assert doubting == Speed()
