"""`async`: as cadence, but fast ranks run ahead; on nccl only with policy.max_overshoot."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import PolicyEvent, PolicyRecord, RoundClosed
from ddp.core.policies.windows import Lead, WindowPlanner, WindowSettings, WindowState
from ddp.core.settings.world import World
from ddp.core.window_sizes.controller import MOST as MOST_STEPS
from ddp.core.window_sizes.controller import ElChe

LEAST, MOST = 2, 5
"""Bounds of the initial overshoot."""


@dataclass(frozen=True)
class Overshoot(Lead):
    """Lets ranks run ahead by a number of steps, fixed or tuned for each rank."""

    fixed: int | None

    def freedom(self, world: World) -> tuple[bool, int]:
        """Return (True, 1): ranks train during an average, and may begin one epoch early."""
        return True, 1

    def ahead(self, state: WindowState) -> tuple[int, ...]:
        """Return the overshoot of each rank. If tuned, it is in steps of the slowest rank, scaled for faster ranks, and at
        most a window.

        Where ranks block, a tuned overshoot is zero: all ranks would wait for one in the middle of a step beyond its count,
        which costs more than the step gains at any jitter."""
        if self.fixed is not None:
            return state.overshoot
        if state.world.blocking:
            return (0,) * state.world.size
        counts, slowest = state.elche.counts, state.elche.fewest
        return tuple(min(-(-more * n // slowest), n) for more, n in zip(state.overshoot, counts, strict=True))

    def initial(self, world: World) -> tuple[int, ...]:
        """Return the initial overshoot, equal for all ranks."""
        steps = min(max(world.steps // 100, LEAST), MOST) if self.fixed is None else self.fixed
        return (steps,) * world.size

    def grown(self, state: WindowState, event: RoundClosed, now: ElChe) -> tuple[int, ...]:
        """Return the overshoot after a window: doubled for a rank that ran short of work, up to a window.

        If the window grows, it grows in proportion, as ranks drift apart further in a longer window. It is limited so that
        the epoch holds a window and the overshoot: a rank that takes all of the next window leaves nothing to the
        others."""
        if self.fixed is not None:
            return state.overshoot
        before, fewest, steps = state.elche.fewest, now.fewest, sum(now.counts)
        doubled = tuple(
            max(more, min(2 * more, before)) if starved else more
            for more, starved in zip(state.overshoot, event.starved, strict=True)
        )
        if fewest <= before:
            return doubled
        room = fewest * (now.most - steps) // steps
        return tuple(max(more, min(-(-more * fewest // before), room)) for more in doubled)


@dataclass(frozen=True)
class Async(WindowSettings):
    """Settings of windows, as for `cadence`, and of how far a rank may run beyond its own window."""

    max_overshoot: int | None = None
    """Steps that a rank may run beyond its count while others catch up; null: tuned, initially 1 % of an epoch's steps (2 to
    5), and 0 where ranks block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_overshoot is not None and not 0 <= self.max_overshoot <= MOST_STEPS:
            raise ValueError(f"max_overshoot={self.max_overshoot} must be from 0 to {MOST_STEPS}, or null to tune it")

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Begin with the first windows. Raises ValueError for a hint of wrong length."""
        return WindowPlanner.of(self, Overshoot(self.max_overshoot)).init(world)

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan | PolicyRecord, ...]]:
        """Size the next windows and the overshoot."""
        return WindowPlanner.of(self, Overshoot(self.max_overshoot)).update(state, event)
