"""`cadence`: each rank trains steps in proportion to its speed, then all average parameters.

The default for devices of unequal speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import PolicyEvent, PolicyRecord
from ddp.core.policies.windows import Lead, WindowPlanner, WindowSettings, WindowState
from ddp.core.settings.world import World


@dataclass(frozen=True)
class Cadence(WindowSettings):
    """Settings of windows. On a backend where ranks do not block, a rank may run up to one window ahead."""

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Begin with the first windows. Raises ValueError for a hint of wrong length."""
        return WindowPlanner.of(self, Lead()).init(world)

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan | PolicyRecord, ...]]:
        """Size the next windows."""
        return WindowPlanner.of(self, Lead()).update(state, event)
