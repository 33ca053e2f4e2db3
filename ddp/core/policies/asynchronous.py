"""`async`: El Che counts are what a rank does at least; it goes on while the others catch up, into the next epoch too."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.events import RoundClosed
from ddp.core.policies.windows import WindowSettings, WindowState
from ddp.core.world import World

LEAST, MOST = 2, 5
"""Bounds of the overshoot to begin with."""


@dataclass(frozen=True)
class Async(WindowSettings):
    """The bound on running ahead is fixed, or tuned for each rank."""

    max_overshoot: int | None = None
    """Steps a rank may run beyond its count while others catch up; null: tuned, from 1 % of an epoch's (2 to 5) on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_overshoot is not None and self.max_overshoot < 0:
            raise ValueError(f"max_overshoot={self.max_overshoot} must be 0 or more, or null to tune it")

    def freedom(self, world: World) -> tuple[bool, int]:
        """One epoch ahead."""
        return True, 1

    def ahead(self, state: WindowState) -> tuple[int, ...]:
        """The overshoot, fixed or tuned; a tuned one is no longer than a window.

        Where ranks block, all wait for whoever is in the middle of a step: there a tuned one holds as many steps as end
        within one of the slowest rank, less the last.
        """
        if self.max_overshoot is not None:
            return state.overshoot
        counts = state.elche.counts
        bounds = tuple(n // min(counts) - 1 for n in counts) if state.world.blocking else counts
        return tuple(min(more, bound) for more, bound in zip(state.overshoot, bounds, strict=True))

    def initial_overshoot(self, world: World) -> tuple[int, ...]:
        """The same for all."""
        one = min(max(world.steps // 100, LEAST), MOST) if self.max_overshoot is None else self.max_overshoot
        return (one,) * world.size

    def grown_overshoot(self, state: WindowState, event: RoundClosed) -> tuple[int, ...]:
        """Twice as much for a rank that stood still for lack of work, up to a window."""
        if self.max_overshoot is not None:
            return state.overshoot
        return tuple(
            max(more, min(2 * more, count)) if starved else more
            for more, count, starved in zip(state.overshoot, state.elche.counts, event.starved, strict=True)
        )
