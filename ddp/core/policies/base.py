"""The interface of a policy: pure functions from measured windows to a `Plan`.

A policy decides how many steps each rank trains between two averages, and how far it may run ahead. It never sees ledgers,
chunks, rounds or backends: dispatch and averaging are the same for all policies."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from ddp.core.messages.commands import Plan
from ddp.core.messages.events import PolicyEvent, PolicyRecord
from ddp.core.settings.world import World


class Policy(Protocol):
    """A frozen dataclass of settings. Its state is a frozen value of its own."""

    every_step: ClassVar[bool]
    """Whether replicas meet after every step regardless of measurements, so that a run's bits depend on its cell and seed
    alone."""

    def init(self, world: World) -> tuple[Any, Plan]:
        """Return the initial state and plan."""
        ...

    def update(self, state: Any, event: PolicyEvent) -> tuple[Any, tuple[Plan | PolicyRecord, ...]]:
        """React to a closed window; return the next state, a plan if it changes, and records."""
        ...
