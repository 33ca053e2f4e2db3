"""Guards: whether replicas diverge faster than averaging brings them together. One file each."""

from __future__ import annotations

from ddp.core.guard.base import STABLE, Guard, GuardDecision, Report
from ddp.core.guard.growth import GrowthGuard
from ddp.core.guard.level import LevelGuard
from ddp.core.guard.none import NoGuard
from ddp.registry import Registry, loaded

_OURS: dict[str, type[Guard]] = {
    "none": NoGuard,
    "level": LevelGuard,
    "growth": GrowthGuard,
}
GUARDS: Registry[type[Guard]] = Registry("guards", _OURS, loaded())
"""Name -> frozen dataclass, whose one setting is the divergence threshold."""

__all__ = ["GUARDS", "STABLE", "Guard", "GuardDecision", "Report"]
