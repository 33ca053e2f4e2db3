"""`async`: as cadence; fast ranks run ahead, on nccl only with max_overshoot."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.commands import Plan
from ddp.core.controller import MOST as MOST_STEPS
from ddp.core.controller import ElChe
from ddp.core.events import PolicyEvent, PolicyRecord, RoundClosed
from ddp.core.policies.windows import Lead, WindowPlanner, WindowSettings, WindowState
from ddp.core.world import World

LEAST, MOST = 2, 5
"""Bounds of the overshoot to begin with."""


@dataclass(frozen=True)
class Overshoot(Lead):
    """A lead of so many steps, fixed, or tuned for each rank."""

    fixed: int | None

    def freedom(self, world: World) -> tuple[bool, int]:
        """Return (true, one epoch)."""
        return True, 1

    def ahead(self, state: WindowState) -> tuple[int, ...]:
        """Return the overshoot. A tuned one is in steps of the slowest rank, for the others as many as they do meanwhile,
        and no longer than a window.

        Where ranks block, all would wait for whoever is in the middle of a step beyond its count, which costs more than
        the step brings at any jitter: there a tuned one is zero.
        """
        if self.fixed is not None:
            return state.overshoot
        if state.world.blocking:
            return (0,) * state.world.size
        counts, slowest = state.elche.counts, state.elche.fewest
        return tuple(min(-(-more * n // slowest), n) for more, n in zip(state.overshoot, counts, strict=True))

    def initial(self, world: World) -> tuple[int, ...]:
        """Return the same for all."""
        steps = min(max(world.steps // 100, LEAST), MOST) if self.fixed is None else self.fixed
        return (steps,) * world.size

    def grown(self, state: WindowState, event: RoundClosed, now: ElChe) -> tuple[int, ...]:
        """Return twice as much for a rank that ran short of work, up to a window.

        As large a part of a longer window, since what ranks drift apart in one grows with it; as far as an epoch holds a
        window and that, as a rank which takes all of the next one leaves the others none.
        """
        if self.fixed is not None:
            return state.overshoot
        before = state.elche.fewest
        doubled = tuple(
            max(more, min(2 * more, before)) if starved else more
            for more, starved in zip(state.overshoot, event.starved, strict=True)
        )
        if now.fewest <= before:
            return doubled
        room = now.fewest * (now.most - sum(now.counts)) // sum(now.counts)
        return tuple(max(more, min(-(-more * now.fewest // before), room)) for more in doubled)


@dataclass(frozen=True)
class Async(WindowSettings):
    """Windows as of `cadence`, and how far a rank may run beyond its own."""

    max_overshoot: int | None = None
    """Steps a rank may run beyond its count while others catch up; null: tuned, from 1 % of an epoch's (2 to 5) on, and none
    where ranks block."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_overshoot is not None and not 0 <= self.max_overshoot <= MOST_STEPS:
            raise ValueError(f"max_overshoot={self.max_overshoot} must be from 0 to {MOST_STEPS}, or null to tune it")

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Begin with the first windows. Raises ValueError for a hint of wrong length."""
        return WindowPlanner.of(self, Overshoot(self.max_overshoot)).init(world)

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan | PolicyRecord, ...]]:
        """Size the next windows, and how far ranks run ahead."""
        return WindowPlanner.of(self, Overshoot(self.max_overshoot)).update(state, event)
