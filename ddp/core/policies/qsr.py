"""`qsr`: windows grow as the learning rate falls: max(base, floor((alpha / rate)^2)) steps of the slowest rank.

A faster rank does as many more as it is faster, unless `max_batch_diff` is 0.

Source: Gu et al., "A Quadratic Synchronization Rule for Distributed Deep Learning", ICLR 2024, arXiv:2310.14423.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import PolicyEvent, PolicyRecord, RoundClosed
from ddp.core.policies.windows import Lead, WindowPlanner, WindowState
from ddp.core.settings.world import World
from ddp.core.window_sizes.controller import LARGEST, MOST, ElCheSettings


@dataclass(frozen=True)
class Qsr:
    """Windows sized by the learning rate. While the rate rises, as in a warm-up, and until two are known, they stay at
    `base`; the longest is an epoch."""

    base: int = 4
    """Fewest steps of the slowest rank in a window."""
    alpha: float = 0.1
    """Learning rate below which windows grow: they have 4 steps at half of it, 100 steps at a tenth."""
    max_batch_diff: int | None = None
    """Most steps by which a rank may be ahead of the slowest in a window (0: all do the same); null: no limit."""
    every_step: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.base <= MOST:
            raise ValueError(f"base={self.base} must be from 1 to {MOST} steps")
        if not 1 / LARGEST <= self.alpha <= LARGEST:
            raise ValueError(f"alpha={self.alpha} must be a positive number from {1 / LARGEST:g} to {LARGEST:g}")
        self._windows()

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Begin with windows of `base` steps."""
        return self._windows().init(world)

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan | PolicyRecord, ...]]:
        """Size the next windows by the rate, and divide them by the speeds."""
        return self._windows().update(state, event)

    def steps(self, state: WindowState, event: RoundClosed) -> int:
        """Return the steps of the slowest rank in the next window."""
        if not state.lr or state.lr < event.lr or not event.lr:
            return self.base
        ratio = min(self.alpha / event.lr, LARGEST)
        return max(self.base, min(math.floor(ratio**2), state.world.steps))

    def _windows(self) -> WindowPlanner:
        controller = ElCheSettings(anchor=self.base, max_anchor=MOST, max_batch_diff=self.max_batch_diff)
        return WindowPlanner(controller, Lead(), rule=self.steps)
