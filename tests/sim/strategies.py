"""What schedules are drawn from: policies, worlds, costs and faults.

Worlds and faults are drawn choice by choice, so that what fails is shrunk to few steps and few faults. Settings of policies
and costs come from dice with a drawn seed: drawing them one by one took as long as the core takes to play the schedule.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from ddp.core.guard import GUARDS
from ddp.core.messages.commands import Apply, Average, Evaluate, Join, LoadState, Reduce, SendState, Stop
from ddp.core.policies import POLICIES
from ddp.core.policies.windows import DISPATCHES
from ddp.core.settings.faults import SLOWING, Fault
from ddp.core.settings.world import World
from ddp.core.window_sizes.speeds import SMOOTHINGS
from ddp.sim import Costs
from tests.policies import accepted

CAMPAIGN = os.environ.get("SCHEDULES") == "new"


def examples(count: int) -> int:
    """Return so many schedules in `make campaign`, drawn anew; in every other run a third of them, always the same ones."""
    return count if CAMPAIGN else -(-count // 3)


SEEDS = st.integers(0, 1 << 20)
SPEED_RATIOS = (0.05, 0.3, 1.0, 2.5, 20.0)
NAMES = {"smoothing": tuple(SMOOTHINGS), "dispatch": tuple(DISPATCHES), "guard": tuple(sorted(GUARDS))}
POLICY_NAMES = st.sampled_from(sorted(POLICIES))


def settings_of(name: str, dice: Random) -> dict[str, Any]:
    """Those of the settings below that a policy has; hints are for six ranks, see `suited`."""

    def perhaps(throw: Callable[[], Any]) -> Any:
        return throw() if dice.random() < 0.5 else None

    options = {
        "anchor": dice.randint(1, 12),
        "max_batch_diff": perhaps(lambda: dice.randint(0, 10)),
        "overhead_target": dice.choice((0.02, 0.1, 0.5)),
        "speed_hint": perhaps(lambda: dice.choices(SPEED_RATIOS, k=6)),
        "partition_ratios": perhaps(lambda: dice.choices(SPEED_RATIOS, k=6)),
        **{setting: dice.choice(options) for setting, options in NAMES.items()},
        "max_overshoot": perhaps(lambda: dice.randint(0, 8)),
        "base": dice.randint(1, 12),
        "alpha": dice.choice((0.001, 0.1, 10.0)),
    }
    return accepted(name, **options)


@st.composite
def policies(draw: Any, only: str = "") -> Any:
    name = only or draw(POLICY_NAMES)
    return POLICIES[name](**settings_of(name, Random(draw(SEEDS))))


def suited(policy: Any, world: World) -> Any:
    """`policy` with hints for the ranks that `world` has."""
    hints = {name: getattr(policy, name, None) for name in ("speed_hint", "partition_ratios")}
    return replace(policy, **{name: hint[: world.size] for name, hint in hints.items() if hint})


SPEEDS, JITTERS = (1.0, 0.9, 0.5, 0.25, 0.1), (0.0, 0.2, 3.0)
TIMES = {
    "latency_s": (0.0, 0.001, 0.05),
    "wire_s": (0.0, 0.002, 0.1, 0.3),
    "reduce_s": (0.0, 0.02, 0.1, 0.3),
    "copy_s": (0.0, 0.001),
    "evaluate_s": (lambda rank: 0.0, lambda rank: 0.05, lambda rank: 0.03 * rank),
    "start_s": (lambda rank, life: 0.0, lambda rank, life: 0.05 * life, lambda rank, life: 0.3 * (1 + rank)),
    "report_s": (0.0, 0.02, 1.0),
    "joins_alone": (False, True),
}


@st.composite
def costs(draw: Any) -> Costs:
    seed = draw(SEEDS)
    dice = Random(seed)
    speeds, jitter = dice.choices(SPEEDS, k=6), dice.choice(JITTERS)

    def step_s(rank: int, step: int) -> float:
        noise = hash((seed, rank, step)) % 1009 / 1009 if jitter else 0.0  # of numbers: the same in every process
        return 0.01 / speeds[rank] * (1 + jitter * noise)

    return Costs(step_s, **{name: dice.choice(choice) for name, choice in TIMES.items()})


@st.composite
def worlds(draw: Any, **fixed: Any) -> World:
    blocking = draw(st.booleans())
    values = {
        "size": draw(st.integers(2, 6)),
        "samples": draw(st.integers(1, 400)),
        "batch": draw(st.integers(1, 40)),
        "epochs": draw(st.integers(1, 3)),
        "blocking": blocking,
        "in_step": blocking and draw(st.booleans()),
        "deadline_s": 5.0,
        "least": draw(st.integers(1, 2)),
    }
    return World(**{**values, **fixed})


@st.composite
def small_worlds(draw: Any, blocking: bool, in_step: bool, restarts: int | None = 0) -> World:
    """A few dozen steps: what goes wrong does so within some windows."""
    size, batch = draw(st.integers(2, 4)), draw(st.integers(1, 7))
    steps, epochs = draw(st.integers(2, 20)), draw(st.integers(1, 3))
    samples = max(steps * batch - draw(st.integers(0, batch - 1)), 1)
    least = draw(st.integers(1, 2))
    world = World(size, samples, batch, epochs, blocking, in_step, deadline_s=5.0, tolerate_loss=True, least=least)
    return replace(world, restarts=restarts)


FATAL = ("crash", "raise", "stall", "lose")
"""Faults that a rank may be given up for."""
LASTING = ("input", "flip", "heal", "slow", "link")
"""Faults that cost no rank."""
MOMENTS = (Join, Average, Apply, Evaluate, SendState, LoadState, Stop, Reduce)
"""Orders that something may go wrong on; replicas that meet inside steps get no `WINDOWED` ones."""
WINDOWED = (Average, Apply, Reduce)


@st.composite
def scripts(draw: Any, world: World, in_turn: bool = False) -> tuple[Fault, ...]:
    """At least one fault, and at least one rank that stays.

    A rank that loses a message meets with nothing fatal beside: what it did in between, nobody could tell. It may lose
    another if ranks average in turn: its orders tell.
    """
    first = 1 + world.steps * world.epochs // world.size
    doomed = draw(st.lists(st.integers(0, world.size - 1), unique=True, min_size=1, max_size=world.size - 1))
    kinds = [draw(st.sampled_from((*FATAL, "slow"))) for _ in doomed]
    faults = [Fault(rank, draw(st.integers(0, first)), kind) for rank, kind in zip(doomed, kinds, strict=True)]
    twice = [fault for fault in faults if fault.kind == "lose" and in_turn and draw(st.booleans())]
    faults += [replace(fault, step=fault.step + draw(st.integers(0, 1))) for fault in twice]
    if kind := draw(st.sampled_from((None, *LASTING))):
        rank, factor = draw(st.integers(0, world.size - 1)), draw(st.sampled_from([1.5, 2.0, 4.0]))
        faults.append(Fault(rank, draw(st.integers(0, first // 2)), kind, factor if kind in SLOWING else 2.0))
    return tuple(faults)


@st.composite
def second_blows(draw: Any, world: World, script: tuple[Fault, ...]) -> tuple[int, type, int, float] | None:
    """(rank, kind of order, how many of them have gone to it before, delay): it dies so long after it was ordered."""
    touched = {fault.rank for fault in script if fault.kind in FATAL}
    free = [rank for rank in range(world.size) if rank not in touched]
    if len(free) < 2:
        return None
    delay = draw(st.sampled_from([0.0, 0.0005, 0.001, 0.005, 0.05, 0.06, 0.11]))
    moments = [order for order in MOMENTS if not (world.in_step and order in WINDOWED)]
    return draw(st.sampled_from(free)), draw(st.sampled_from(moments)), draw(st.integers(0, 3)), delay
