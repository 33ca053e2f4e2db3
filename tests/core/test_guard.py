"""Guards by themselves, and what a policy makes of their verdicts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ddp.core.guard import GUARDS, Report
from ddp.core.guard.base import GuardDecision
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import GuardVerdict, RoundClosed
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.settings.world import World

WORLD = World(2, 100_000, 10, 1, blocking=False, in_step=False)


def verdicts(name: str, divergences: list[float], k: int = 10) -> list[str]:
    guard = GUARDS[name](0.05)
    state, kinds = guard.start(), []
    for divergence in divergences:
        state, verdict = guard.update(state, Report(divergence, k))
        kinds.append(verdict.kind)
    return kinds


@pytest.mark.parametrize("name", GUARDS)
def test_falling_divergence_is_stable(name: str) -> None:
    assert set(verdicts(name, [0.5 / n for n in range(1, 20)])) == {"stable"}


def test_level_needs_a_rise_and_the_threshold() -> None:
    assert verdicts("level", [0.01, 0.02, 0.04]) == ["stable"] * 3
    assert verdicts("level", [0.06, 0.07, 0.08]) == ["stable", "stable", "suppress"]
    assert verdicts("level", [0.06, 0.07, 0.07, 0.08]) == ["stable"] * 4


def test_level_nudges_when_the_rise_goes_on_and_then_begins_anew() -> None:
    rising = [0.06, 0.07, 0.08, 0.09, 0.10, 0.11, 0.12, 0.13]
    assert verdicts("level", rising) == ["stable"] * 2 + ["suppress"] * 2 + ["nudge", "stable", "stable", "suppress"]


def test_growth_has_two_streaks_and_no_scale() -> None:
    slow, fast = 1.005**10, 1.02**10
    for scale in (1e-6, 1.0):
        assert verdicts("growth", [scale * slow**n for n in range(5)]) == ["stable"] * 3 + ["suppress"] * 2
        assert verdicts("growth", [scale * fast**n for n in range(5)])[3] == "nudge"


def test_growth_begins_anew_below_the_noise_floor() -> None:
    assert set(verdicts("growth", [1e-9 * 2**n for n in range(3)] * 4)) == {"stable"}


def closed(round: int, counts: tuple[int, ...], divergence: float, sync_s: float = 0.5) -> RoundClosed:
    busy = tuple(0.01 * n for n in counts)
    return RoundClosed(float(round), round, counts, busy, sync_s, (0.0, 0.0), (divergence, 0.0), (True, True))


def test_growth_of_windows_is_vetoed_and_rearmed() -> None:
    policy = Cadence()
    state, _ = policy.init(WORLD)
    anchors, said = [], []
    for index, divergence in enumerate([0.06, 0.07, 0.08, 0.05, 0.05, 0.05, 0.05, 0.05]):
        # Averages are dear from the third window on: El Che wants to grow.
        state, outputs = policy.update(state, closed(index, state.elche.counts, divergence, 0.5 if index > 1 else 1e-4))
        anchors.append(state.elche.anchor)
        said += [output for output in outputs if isinstance(output, GuardVerdict)]
    assert anchors == [10, 10, 10, 10, 10, 10, 10, 20]
    assert said == [GuardVerdict(2.0, 2, "level", "suppress", 0.08, 0.08, 0.05, 1.0)]


def test_a_nudge_halves_the_anchor_and_takes_the_overshoot_back() -> None:
    policy = Async()
    state, plan = policy.init(WORLD)
    plans = [plan]
    for index in range(5):
        state, outputs = policy.update(state, closed(index, state.elche.counts, 0.06 + 0.01 * index, 1e-4))
        plans += [output for output in outputs if isinstance(output, Plan)]
    assert state.elche.anchor == 5
    assert max(plan.ahead[0] for plan in plans) == 10
    assert plans[-1].ahead == (5, 5)
    assert plans[-1].counts == (5, 5)


def test_without_a_guard_nothing_is_said() -> None:
    policy = Cadence(no_divergence_guard=True)
    state, _ = policy.init(WORLD)
    for index in range(8):
        state, outputs = policy.update(state, closed(index, state.elche.counts, 0.06 + 0.01 * index))
        assert not any(isinstance(output, GuardVerdict) for output in outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"guard": "lyapunov"}, "guard='lyapunov'"), ({"divergence_threshold": 0.0}, "divergence_threshold=0.0")],
)
def test_impossible_settings_are_refused(options: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cadence(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("decision", [("supress",), ("nudge", 1.0, 0.5, 2.0), ("nudge", 1.0, 0.5, math.nan)])
def test_a_guard_cannot_decide_what_no_policy_knows(decision: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="a guard decides stable, suppress, nudge, with a factor"):
        GuardDecision(*decision)
