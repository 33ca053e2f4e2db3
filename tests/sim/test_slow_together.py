"""Ranks that become slow while others are slow, too, or while ranks go and come. In virtual time."""

from __future__ import annotations

import random

import pytest

from ddp.core.anomalies.slowness import COMPUTE, HOST, INPUT, SlowFold, SlowRank
from ddp.core.messages.commands import Plan
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.events import Progress
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.qsr import Qsr
from ddp.core.policies.sync import Sync
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.sim.test_slowness import SHORT, fed, watch

FINE = (0.2, 0.0, 0.2)
SOUND, SLOW, LATE = WorkSeconds(0.02, 0.2), WorkSeconds(0.02, 0.6), WorkSeconds(0.42, 0.2)
Named = list[tuple[int, str]]


def found(*windows: tuple[WorkSeconds, ...]) -> list[SlowRank]:
    """Who is named if ranks report these windows."""
    fold = SlowFold()
    fold.add(Plan((1,) * len(windows[0]), (0,) * len(windows[0]), False, 0, True, True, 1, ""))
    for at, works in enumerate(windows):
        for rank, work in enumerate(works):
            fold.add(Progress(float(at), rank, 0, 1, 100, 0.5, 0.0, 0.1, work=work))
    return fold.ranks


@pytest.mark.parametrize(
    ("works", "expected"),
    [
        ((SLOW, SLOW, SOUND), [(0, COMPUTE), (1, COMPUTE)]),
        ((SLOW, LATE, SOUND), [(0, COMPUTE), (1, INPUT)]),
        ((SLOW, SOUND, SLOW, SOUND, SLOW), [(0, COMPUTE), (2, COMPUTE), (4, COMPUTE)]),
        ((SLOW, SLOW, SLOW), [(0, HOST), (1, HOST), (2, HOST)]),
        (tuple(WorkSeconds(0.02, each) for each in (0.4, 0.35, 0.3)), [(0, HOST), (1, HOST), (2, HOST)]),
    ],
)
def test_it_is_the_machine_only_if_most_others_are_slow(works: tuple[WorkSeconds, ...], expected: Named) -> None:
    """The median of one slow rank and one sound rank explained what was slow: two of three were named for their host."""
    named = found(*[(SOUND,) * len(works)] * 5, *[works] * 8)
    assert [(each.rank, each.cause) for each in named] == expected


@pytest.mark.parametrize(
    ("policy", "second", "seed"), [(Sync(), 200, 2), (SHORT, 160, 2), (Async(anchor=10, max_anchor=10), 160, 0)]
)
def test_a_slow_rank_is_not_sound_because_another_becomes_as_slow(policy: Policy, second: int, seed: int) -> None:
    faults = Fault(0, 80, "slow", 3.0), Fault(1, second, "slow", 3.0)
    seen = watch(policy, 2, not isinstance(policy, Async), 0.05, *faults, seed=seed)
    assert len(seen.struck) == 2
    assert [(each.cause, each.healed) for each in seen.slow if each.rank == 0] == [(COMPUTE, None)]


def test_one_that_is_no_slower_than_all_on_a_busy_machine_is_sound() -> None:
    """Its input was late no longer, but its own work took 1.4 times as long as once, as that of others did."""
    busy = WorkSeconds(0.03, 0.28)
    (late, *host) = found(*[(SOUND, SOUND)] * 5, *[(LATE, SOUND)] * 3, *[(busy, busy)] * 4)
    assert late.cause == INPUT
    assert late.healed is not None
    assert {each.cause for each in host} == {HOST}


def shared(by_samples: bool, *faults: Fault) -> list[SlowRank]:
    """Who is named where gradients are averaged and rank 1 is lost, and comes back later."""
    world = World(
        2, 8 * 2000 * 2, 8, 1, blocking=True, in_step=True, deadline_s=60.0, tolerate_loss=True, restarts=None
    )
    costs = Costs(lambda rank, done: 0.01, report_s=0.02, by_samples=by_samples, start_s=lambda rank, life: 8.0)
    simulation, fold = Simulation(Sync(), world, costs, deaths=((5.0, 1),), faults=faults, keep=False), SlowFold()
    simulation.listen = lambda at, record: fold.add(record)
    simulation.run()
    return fold.ranks


@pytest.mark.parametrize("by_samples", [False, True])
def test_nobody_is_slow_because_a_step_is_shared_by_more_ranks(by_samples: bool) -> None:
    """A rank that joined made the others slow: what is fixed per step was shared by half as many samples."""
    assert shared(by_samples) == []


def test_one_that_was_slow_before_a_rank_was_lost_is_sound_once_it_is_as_fast_as_then() -> None:
    (slow,) = shared(True, Fault(0, 100, "slow", 3.0), Fault(0, 1000, "heal"))
    assert slow.cause == COMPUTE
    assert slow.healed is not None
    assert slow.healed > 5.0


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("by_samples", [False, True])
@pytest.mark.parametrize(
    ("policy", "size", "samples", "batch", "blocking"),
    [
        (Cadence(anchor=1, dispatch="partition"), 2, 17, 8, False),
        (Cadence(), 4, 175, 32, False),
        (Qsr(), 4, 161, 32, True),
        (Sync(), 4, 288, 32, True),
    ],
)
def test_the_small_last_batch_of_an_epoch_is_no_slowness_and_hides_none(
    policy: Policy, size: int, samples: int, batch: int, blocking: bool, by_samples: bool, factor: float
) -> None:
    """Whoever got it was named, as a step of one sample takes as long as one of many, or hardly less."""
    dice, fold = random.Random(0), SlowFold()
    world = World(size, samples, batch, 60, blocking, blocking and isinstance(policy, Sync))
    cost = Costs(lambda rank, step: 0.05 * dice.uniform(0.97, 1.03), report_s=0.02, by_samples=by_samples)
    played = Simulation(policy, world, cost, faults=(Fault(1, 30, "slow", factor),))
    played.listen = lambda at, record: fold.add(record)
    played.run()
    assert played.struck
    slow = [(each.rank, each.cause, each.healed) for each in fold.ranks]
    assert slow == ([(1, COMPUTE, None)] if factor > 1.0 else [])


def test_small_batches_do_not_show_that_a_slow_rank_is_sound_again() -> None:
    """They take no longer than whole ones did before, where a step costs what its samples cost."""
    fold = SlowFold()
    fold.add(Plan((1, 1), (0, 0), False, 0, True, True, 1, ""))
    windows = [(0.2, 8)] * 5 + [(0.4, 8)] * 3 + [(0.2, 4)] * 4 + [(0.4, 8)] * 3 + [(0.2, 8)] * 3
    for at, (seconds, samples) in enumerate(windows):
        for rank, work in enumerate((WorkSeconds(0.0, seconds), WorkSeconds(0.0, 0.2))):
            fold.add(Progress(float(at), rank, 0, 1, 8 if rank else samples, 0.5, 0.0, 0.1, work=work))
    (named,) = fold.ranks
    assert (named.rank, named.cause, named.healed) == (0, COMPUTE, 14.5)


def test_computing_that_takes_a_little_longer_for_two_windows_names_nobody() -> None:
    """Found in a clean run: 1.24, 1.48, 1.69 and 1.15 times as long on an idle virtual machine."""
    bump = [(0.2 * factor, 0.0, 0.2) for factor in (1.24, 1.48, 1.69, 1.15)]
    assert fed(*[FINE] * 5, *bump, *[FINE] * 5).ranks == []
    (named,) = fed(*[FINE] * 5, *[(0.3, 0.0, 0.2)] * 3).ranks
    assert (named.cause, named.windows, named.named) == (COMPUTE, 3, 7.0)
    (named,) = fed(*[FINE] * 5, *[(0.5, 0.0, 0.2)] * 2).ranks
    assert (named.cause, named.windows) == (COMPUTE, 2)
