"""What a policy is: pure functions from measured windows to a `Plan`.

A policy says how many steps each rank runs before the replicas are brought together, and how far it may run ahead. It never
sees ledgers, chunks, rounds or backends: dispatch and averaging are the same for all policies.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from ddp.core.commands import Plan
from ddp.core.events import PolicyEvent, PolicyRecord
from ddp.core.world import World


class Policy(Protocol):
    """A frozen dataclass of settings. The state is the policy's own frozen value."""

    every_step: ClassVar[bool]
    """Replicas meet after every step, whatever is measured: so a run's bits depend on nothing but its cell and seed."""

    def init(self, world: World) -> tuple[Any, Plan]:
        """Return the state and the plan to begin with."""
        ...

    def update(self, state: Any, event: PolicyEvent) -> tuple[Any, tuple[Plan | PolicyRecord, ...]]:
        """React to a window; return a plan where it changes, and what else is to be recorded."""
        ...
