"""What schedules are drawn from: policies, worlds, costs and faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ddp.core.commands import Adopt, Apply, Average, Evaluate, Join, Reduce, Share, Stop
from ddp.core.faults import Fault
from ddp.core.guard import GUARDS
from ddp.core.policies import POLICIES
from ddp.core.policies.windows import DISPATCHES
from ddp.core.speeds import SMOOTHINGS
from ddp.core.world import World
from ddp.sim import Costs

RATIOS = st.lists(st.sampled_from([0.05, 0.3, 1.0, 2.5, 20.0]), min_size=6, max_size=6)
"""A hint for each of six ranks: see `suited`."""


ANCHORS, LEADS, OVERSHOOTS = st.integers(1, 12), st.none() | st.integers(0, 10), st.none() | st.integers(0, 8)
HINTS = st.none() | RATIOS
TARGETS = st.sampled_from([0.02, 0.1, 0.5])
NAMES = {"smoothing": SMOOTHINGS, "dispatch": DISPATCHES, "guard": tuple(sorted(GUARDS))}
CHOICES = {
    "anchor": ANCHORS,
    "max_batch_diff": LEADS,
    "overhead_target": TARGETS,
    "speed_hint": HINTS,
    "partition_ratios": HINTS,
    **{name: st.sampled_from(options) for name, options in NAMES.items()},
}
"""What settings of a policy with windows are drawn from. Strategies are made once: that costs more than drawing."""
POLICY_NAMES = st.sampled_from(sorted(POLICIES))


@st.composite
def policies(draw: Any, only: str = "") -> Any:
    name = only or draw(POLICY_NAMES)
    if name == "sync":
        return POLICIES[name]()
    options = {setting: draw(choice) for setting, choice in CHOICES.items()}
    if name == "async":
        options["max_overshoot"] = draw(OVERSHOOTS)
    return POLICIES[name](**options)


def suited(policy: Any, world: World) -> Any:
    """`policy` with hints for the ranks that `world` has."""
    hints = {name: getattr(policy, name, None) for name in ("speed_hint", "partition_ratios")}
    return replace(policy, **{name: hint[: world.size] for name, hint in hints.items() if hint})


SPEEDS = st.lists(st.sampled_from([1.0, 0.9, 0.5, 0.25, 0.1]), min_size=6, max_size=6)
SEEDS, JITTERS = st.integers(0, 1000), st.sampled_from([0.0, 0.2, 3.0])
TIMES = {
    "latency_s": st.sampled_from([0.0, 0.001, 0.05]),
    "wire_s": st.sampled_from([0.0, 0.002, 0.1, 0.3]),
    "reduce_s": st.sampled_from([0.0, 0.02, 0.1, 0.3]),
    "copy_s": st.sampled_from([0.0, 0.001]),
    "evaluate_s": st.sampled_from([0.0, 0.05]),
    "report_s": st.sampled_from([0.0, 0.02, 1.0]),
}


@st.composite
def costs(draw: Any) -> Costs:
    speeds, seed, jitter = draw(SPEEDS), draw(SEEDS), draw(JITTERS)

    def step_s(rank: int, step: int) -> float:
        noise = hash((seed, rank, step)) % 1009 / 1009 if jitter else 0.0  # of numbers: the same in every process
        return 0.01 / speeds[rank] * (1 + jitter * noise)

    return Costs(step_s, **{name: draw(choice) for name, choice in TIMES.items()})


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
    }
    return World(**{**values, **fixed})


@st.composite
def small_worlds(draw: Any, blocking: bool, in_step: bool) -> World:
    """A few dozen steps: what goes wrong does so within some windows."""
    size, batch = draw(st.integers(2, 4)), draw(st.integers(1, 7))
    steps, epochs = draw(st.integers(2, 20)), draw(st.integers(1, 3))
    samples = max(steps * batch - draw(st.integers(0, batch - 1)), 1)
    return World(size, samples, batch, epochs, blocking, in_step, deadline_s=5.0, tolerate_loss=True)


FATAL = ("crash", "raise", "stall", "lose")
"""Faults that a rank may be given up for."""
MOMENTS = (Join, Average, Apply, Evaluate, Share, Adopt, Stop, Reduce)
"""Orders that something may go wrong on."""


@st.composite
def scripts(draw: Any, world: World) -> tuple[Fault, ...]:
    """At least one fault, and at least one rank that stays.

    A rank that loses a message meets with nothing fatal beside: what it did in between, nobody could tell.
    """
    first = 1 + world.steps * world.epochs // world.size
    doomed = draw(st.lists(st.integers(0, world.size - 1), unique=True, min_size=1, max_size=world.size - 1))
    kinds = [draw(st.sampled_from((*FATAL, "slow"))) for _ in doomed]
    faults = [Fault(rank, draw(st.integers(0, first)), kind) for rank, kind in zip(doomed, kinds, strict=True)]
    if draw(st.booleans()):
        rank, factor = draw(st.integers(0, world.size - 1)), draw(st.sampled_from([1.5, 2.0, 4.0]))
        faults.append(Fault(rank, draw(st.integers(0, first)), "slow", factor))
    return tuple(faults)


@st.composite
def second_blows(draw: Any, world: World, script: tuple[Fault, ...]) -> tuple[int, type, int, float] | None:
    """(rank, kind of order, how many of them have gone to it before, delay): it dies so long after it was ordered."""
    touched = {fault.rank for fault in script if fault.kind in FATAL}
    free = [rank for rank in range(world.size) if rank not in touched]
    if len(free) < 2:
        return None
    delay = draw(st.sampled_from([0.0, 0.0005, 0.001, 0.005, 0.05, 0.06, 0.11]))
    return draw(st.sampled_from(free)), draw(st.sampled_from(MOMENTS)), draw(st.integers(0, 3)), delay
