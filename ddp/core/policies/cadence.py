"""`cadence`: every rank runs its El Che count, then all are brought together. The default for devices of unequal speed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core import elche
from ddp.core.commands import Plan
from ddp.core.elche import ElCheSettings
from ddp.core.events import PolicyEvent
from ddp.core.policies import windows
from ddp.core.policies.windows import WindowState
from ddp.core.world import World


@dataclass(frozen=True)
class Cadence(ElCheSettings):
    """El Che's settings. On a backend where nobody blocks, a rank may run up to one window ahead of its contribution."""

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Equal windows of `anchor` steps until the first one is measured."""
        controller = elche.start(self, world.size)
        plan = Plan(
            counts=controller.counts,
            ahead=(0,) * world.size if world.blocking else controller.counts,
            overlap=not world.blocking,
            lookahead=0 if world.blocking else 1,
            in_step=False,
            anchor=controller.anchor,
            reason=f"cadence: {self.anchor} steps each until speeds are known",
        )
        return WindowState(controller, plan, world.steps), plan

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan, ...]]:
        """Follow the speeds."""
        after = windows.update(self, state, event)
        if after.plan is state.plan:
            return after, ()
        ahead = after.plan.counts if after.plan.overlap else after.plan.ahead
        after = replace(after, plan=replace(after.plan, ahead=ahead))
        return after, (after.plan,)
