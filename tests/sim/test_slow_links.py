"""A rank whose link becomes slow is named for it within three windows; nobody else is, whatever the machine does. In virtual
time, with noise that only makes transfers longer: rare heavy tails of one rank, long bursts of all."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp.core.anomalies.slow_links import LinkWatch
from ddp.core.anomalies.slowness import LINK, SlowFold, SlowRank
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.sync import Sync
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.sim.strategies import examples

SHORT = Cadence(anchor=10, max_anchor=10)
POLICIES: tuple[Policy, ...] = (SHORT, Async(anchor=10, max_anchor=10), Sync())
STEP_S, BURST_S = 0.01, 1.5
Noise = Callable[[float], float]
"""Time -> so many times as long as it took a transfer is measured."""


def noise(dice: random.Random, seed: int) -> Noise:
    """Return noise of one transfer: in stretches of time all take several times as long, and one in a hundred has a tail
    of its own without a mean."""

    def measured(at: float) -> float:
        burst = random.Random(seed * 1009 + int(at / BURST_S))
        together = burst.uniform(1.0, 6.0) if burst.random() < 0.3 else 1.0
        own = 1.0 + dice.paretovariate(0.9) if dice.random() < 0.01 else dice.uniform(1.0, 1.1)
        return together * own

    return measured


def watch(policy: Policy, size: int, seed: int, *faults: Fault) -> tuple[list[SlowRank], Simulation]:
    """Play a run of ranks of unequal speed; return who was named."""
    dice = random.Random(seed)
    speeds, noisy = [dice.uniform(1.0, 3.0) for _ in range(size)], noise(dice, seed)
    costs = Costs(
        lambda rank, done: STEP_S * speeds[rank] * dice.uniform(0.9, 1.1),
        transfer=lambda rank, factor: factor * noisy(simulation.now),
        report_s=0.02,
    )
    world = World(size, 8 * 100 * size, 8, 3, True, isinstance(policy, Sync))
    simulation, fold = Simulation(policy, world, costs, faults=faults), SlowFold()
    simulation.listen = lambda at, record: fold.add(record)
    simulation.run()
    return fold.ranks, simulation


@given(
    policy=st.sampled_from(POLICIES),
    size=st.integers(2, 5),
    factor=st.floats(1.5, 6.0),
    step=st.integers(20, 110),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(30), deadline=None)
def test_a_rank_whose_link_becomes_slow_is_named_for_it(
    policy: Policy, size: int, factor: float, step: int, seed: int
) -> None:
    rank = seed % size
    named, played = watch(policy, size, seed, Fault(rank, step, "link", factor))
    assert played.struck, "the run ended before"
    assert [(each.rank, each.cause) for each in named] == [(rank, LINK)]
    assert named[0].windows == 3
    assert named[0].named > played.struck[0][0]


@given(policy=st.sampled_from(POLICIES), size=st.integers(2, 5), seed=st.integers(0, 2**16))
@settings(max_examples=examples(30), deadline=None)
def test_noise_names_nobody(policy: Policy, size: int, seed: int) -> None:
    assert [each for each in watch(policy, size, seed)[0] if each.cause == LINK] == []


def test_one_quick_transfer_shows_that_a_link_is_sound_again() -> None:
    named, played = watch(SHORT, 3, 1, Fault(1, 60, "link", 3.0), Fault(1, 150, "heal"))
    (slow,) = named
    assert len(played.struck) == 2
    assert slow.healed is not None
    assert slow.healed >= played.struck[1][0] - 1.0


@pytest.mark.parametrize(
    ("mine", "others", "slow"),
    [
        ((2.0, 2.0, 2.0), (1.0, 1.0, 1.0), True),
        ((2.0, 1.0, 2.0), (1.0, 1.0, 1.0), False),
        ((2.0, 2.0, 2.0), (2.0, 2.0, 2.0), False),
        ((2.0, 2.0, 2.0), (1.0, 9.0, 1.0), True),
    ],
)
def test_the_quickest_of_three_windows_is_held_against_the_others(
    mine: tuple[float, ...], others: tuple[float, ...], slow: bool
) -> None:
    own, other = LinkWatch(), LinkWatch()
    for ratio in others:
        other.take(ratio)
        other.close(0.0, ())
    other.factor = 1.0  # nobody named it
    ends = []
    for ratio in mine:
        own.take(3 * ratio)
        own.take(ratio)
        ends.append(own.close(0.0, [other]))
    assert ends == [False, False, slow]
    assert not own.close(0.0, [other]), "a window without a transfer says nothing"


def test_records_of_before_say_nothing_of_links() -> None:
    assert WorkSeconds(0.1, 0.2).link == 0.0
