"""Guards: whether replicas come apart faster than averaging brings them together. One file each."""

from __future__ import annotations

from ddp.core.guard.base import STABLE, Guard, Report, Verdict
from ddp.core.guard.growth import Growth
from ddp.core.guard.level import Level
from ddp.core.guard.none import Unguarded

GUARDS: dict[str, type[Guard]] = {
    "none": Unguarded,
    "level": Level,
    "growth": Growth,
}
"""Name -> frozen dataclass; its one setting is the divergence threshold."""

__all__ = ["GUARDS", "STABLE", "Guard", "Report", "Verdict"]
