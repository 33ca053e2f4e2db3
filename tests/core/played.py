"""A coordinator that is told events, and what it answers."""

from __future__ import annotations

from typing import Any

from ddp.core.coordinator import Coordinator
from ddp.core.messages.events import Ready
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.settings.world import World

WORLD = World(2, 100, 10, 1, blocking=True, in_step=True, deadline_s=5.0)


def ready(rank: int, **changes: Any) -> Ready:
    values = {"samples": 100, "parameters": 1, "digest": "d", "device": "cpu", "transport": "gloo"}
    return Ready(1.0, rank, **{**values, **changes})


def play(*events: Any, world: World = WORLD, policy: Policy | None = None) -> tuple[Coordinator, list[Any]]:
    coordinator, issued = Coordinator.start(policy or Cadence(), world, at=0.0), []
    for event in events:
        coordinator, outputs = coordinator.update(event)
        issued += outputs
    return coordinator, issued
