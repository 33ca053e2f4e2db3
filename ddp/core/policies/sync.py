"""`sync`: ranks average gradients or parameters in every step. Classical synchronous data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import PolicyEvent
from ddp.core.settings.world import World


@dataclass(frozen=True)
class Sync:
    """No settings. Gradients are averaged inside the step where the backend can, else parameters after it."""

    every_step: ClassVar[bool] = True

    def init(self, world: World) -> tuple[None, Plan]:
        """Plan windows of one step per rank, for the whole run."""
        return None, Plan(
            counts=(1,) * world.size,
            ahead=(0,) * world.size,
            overlap=False,
            lookahead=0,
            in_step=world.in_step,
            anchor=1,
            reason="sync: together after every step",
        )

    def update(self, state: None, event: PolicyEvent) -> tuple[None, tuple[Plan, ...]]:
        """Change nothing: the plan is the same for every window."""
        return None, ()
