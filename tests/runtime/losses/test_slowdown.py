"""The emulated slow device, on a clock that only sleep and work move."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ddp.process import slowdown
from ddp.process.slowdown import Slowdown, core_wait

STEP_S = 0.001


class Clock:
    """A sleep of it overshoots by a tenth of a step. It stands for the meter, too."""

    def __init__(self) -> None:
        self.at = self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        self.at += seconds + STEP_S / 10
        self.slept += seconds + STEP_S / 10

    def add(self, kind: str, began: float) -> float:
        return self.at

    def compute(self) -> None:
        pass

    rest = compute


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(slowdown, "now", lambda: made.at)
    monkeypatch.setattr(slowdown, "sleep", made.sleep)
    return made


def slept(clock: Clock, slow: Slowdown, *steps: tuple[float, str]) -> float:
    began = clock.slept
    for seconds, part in steps:
        slow.begin()
        clock.at += seconds
        slow.pay(seconds, clock, part)
    return clock.slept - began


def test_neither_the_start_up_nor_a_hiccup_is_multiplied(clock: Clock) -> None:
    """The mean over the last 64 steps had the start-up in it: a rank at 0.25 was at 0.06 for as long."""
    slow = Slowdown(0.25, lambda: 0.0)
    assert slept(clock, slow, (0.1, "step")) == 0.0
    usual: Any = [(STEP_S, "step")] * 20
    assert slept(clock, slow, *usual) == pytest.approx(20 * 3 * STEP_S, rel=0.01)
    assert slept(clock, slow, (0.05, "step"), *usual[1:]) == pytest.approx(20 * 3 * STEP_S, rel=0.01)


def test_what_steps_waited_for_a_core_before_is_not_multiplied(clock: Clock) -> None:
    """Found on a loaded machine: steps of 4 ms had taken 430 ms with their waiting, and were slowed down by that."""
    slow = Slowdown(1.0, lambda: 0.0)
    slept(clock, slow, *[(100 * STEP_S, "step")] * 20)
    slow.slow_down(3.0)
    assert slept(clock, slow, *[(STEP_S, "step")] * 20) == pytest.approx(20 * 2 * STEP_S, rel=0.06)


def test_a_rank_waits_for_a_core_no_longer_than_it_did_not_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found on a loaded machine, where Linux told of waits of 12 ms in steps of 3 ms: nothing was slowed down."""
    monkeypatch.setattr(slowdown, "thread_time", lambda: clock.at - clock.slept)
    slow = Slowdown(0.5, lambda: 5.0 * clock.at)
    slept(clock, slow, (STEP_S, "step"))
    assert slept(clock, slow, *[(STEP_S, "step")] * 20) == pytest.approx(20 * STEP_S, rel=0.06)


def test_what_a_part_of_a_step_waits_for_other_ranks_is_not_multiplied(clock: Clock) -> None:
    """Of two slow ranks in PyTorch's engines each waited for the other's waiting: steps of 24 ms grew to seconds."""
    slow = Slowdown(1.0, lambda: 0.0)
    slept(clock, slow, (STEP_S, "step"))
    assert not slow.slow
    slow.slow_down(6.0)
    assert slow.slow
    for _ in range(20):
        began = slow.begin()
        clock.at += STEP_S
        slow.computed()
        clock.at += 30 * STEP_S
        slow.pay(clock.at - began, clock)
    assert clock.slept == pytest.approx(20 * 5 * STEP_S, rel=0.01)
    assert slept(clock, slow, *[(STEP_S, "step")] * 20) == pytest.approx(20 * 5 * STEP_S, rel=0.01), "nor afterwards"


def test_a_batch_that_comes_late_makes_a_step_so_many_times_as_long(clock: Clock) -> None:
    """The lateness is no work: it does not grow with itself."""
    slow = Slowdown(1.0, lambda: 0.0)
    usual: Any = [(STEP_S, "step")] * 20
    slept(clock, slow, *usual)
    slow.delay_input(2.5)
    for _ in range(100):
        began = slow.begin()
        slow.hold()
        clock.at += STEP_S
        slow.pay(clock.at - began, clock)
    assert clock.slept == pytest.approx(100 * (1.5 * STEP_S + STEP_S / 10), rel=0.08)
    slow.heal()
    assert slept(clock, slow, *usual) == 0.0


def test_a_step_in_two_parts_is_slowed_down_by_both(clock: Clock) -> None:
    slow = Slowdown(0.5, lambda: 0.0)
    parts: Any = [(STEP_S, "gradient"), (STEP_S / 4, "optimizer")]
    slept(clock, slow, *parts)
    assert slept(clock, slow, *parts * 15) == pytest.approx(15 * 1.25 * STEP_S, rel=0.01)
    slow.slow_down(2.0)
    assert slept(clock, slow, *parts * 16) == pytest.approx(16 * 3 * 1.25 * STEP_S, rel=0.01)


def test_a_device_at_full_speed_never_sleeps(clock: Clock) -> None:
    slow = Slowdown(1.0, lambda: 0.0)
    usual: Any = [(STEP_S, "step")] * 5
    assert slept(clock, slow, *usual) == 0.0
    slow.slow_down(3.0)  # as a scripted fault does, from its very step on
    assert slept(clock, slow, usual[0]) == pytest.approx(2 * STEP_S, abs=STEP_S / 5)


def test_waiting_for_a_core_is_not_multiplied(clock: Clock) -> None:
    """Two slow ranks on one core took twice as long for a step, slept six steps each, and were at 0.13 instead of 0.25."""
    waited = 0.0
    slow = Slowdown(0.25, lambda: waited)
    slept(clock, slow, (0.1, "step"))
    began = clock.slept
    for _ in range(20):
        waited += 0.01  # between two steps
        slow.begin()
        clock.at += 2 * STEP_S
        waited += STEP_S
        slow.pay(2 * STEP_S, clock)
    assert clock.slept - began == pytest.approx(20 * 3 * STEP_S, rel=0.01)


def test_what_a_thread_waits_for_a_core_is_not_what_it_sleeps_or_works() -> None:
    before, began, worked = core_wait(), time.monotonic(), time.thread_time()
    time.sleep(0.2)
    while time.thread_time() - worked < 0.05:
        pass
    rest = time.monotonic() - began - 0.25
    assert 0.0 <= core_wait() - before <= rest + 0.01


def test_a_step_of_a_given_time_takes_it_however_fast_the_machine_is(clock: Clock) -> None:
    slow = Slowdown(0.5, lambda: 0.0, step_s=5 * STEP_S)
    slept(clock, slow, (0.1, "step"))
    began = clock.at
    slept(clock, slow, *[(STEP_S * (1 + number % 4), "step") for number in range(40)])
    assert clock.at - began == pytest.approx(40 * 10 * STEP_S, rel=0.01)
    assert slept(clock, slow, (12 * STEP_S, "step")) == 0.0, "a step that needs longer is not slowed down"
    slow.slow_down(3.0)
    began = clock.at
    slept(clock, slow, *[(STEP_S, "step")] * 20)
    assert clock.at - began == pytest.approx(20 * 30 * STEP_S, rel=0.01)


def test_what_follows_an_exchange_is_part_of_a_given_time(clock: Clock) -> None:
    slow = Slowdown(1.0, lambda: 0.0, step_s=5 * STEP_S)
    both: Any = [(STEP_S, "gradient"), (2 * STEP_S, "optimizer")]
    slept(clock, slow, *both)
    slept(clock, slow, *both)
    began = clock.at
    slept(clock, slow, *both * 20)
    assert clock.at - began == pytest.approx(20 * 5 * STEP_S, rel=0.01)
    assert clock.slept - slept(clock, slow, (STEP_S, "gradient")) > 0.0, "the wait comes before the exchange"
