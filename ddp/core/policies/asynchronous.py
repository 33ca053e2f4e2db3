"""`async`: El Che counts are what a rank does at least; it goes on while the others catch up, into the next epoch too."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core import elche
from ddp.core.commands import Plan
from ddp.core.elche import ElCheSettings
from ddp.core.events import PolicyEvent
from ddp.core.policies import windows
from ddp.core.policies.windows import WindowState
from ddp.core.world import World


@dataclass(frozen=True)
class Async(ElCheSettings):
    """El Che's settings and the bound on running ahead."""

    max_overshoot: int | None = None
    """Steps a rank may run beyond its count while others catch up; null: 1 % of an epoch's steps, between 2 and 5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_overshoot is not None and self.max_overshoot < 0:
            raise ValueError(f"max_overshoot={self.max_overshoot} must be 0 or more, or null to derive it")

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Equal windows of `anchor` steps until the first one is measured."""
        controller = elche.start(self, world.size)
        overshoot = min(max(world.steps // 100, 2), 5) if self.max_overshoot is None else self.max_overshoot
        plan = Plan(
            counts=controller.counts,
            ahead=(overshoot,) * world.size,
            overlap=True,
            lookahead=1,
            in_step=False,
            anchor=controller.anchor,
            reason=f"async: {self.anchor} steps each until speeds are known, up to {overshoot} more",
        )
        return WindowState(controller, plan, world.steps), plan

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan, ...]]:
        """Follow the speeds."""
        after = windows.update(self, state, event)
        return after, () if after.plan is state.plan else (after.plan,)
