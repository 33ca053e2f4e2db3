"""When replicas are brought together. One file each."""

from __future__ import annotations

from ddp.core.policies.asynchronous import Async
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.sync import Sync

POLICIES: dict[str, type[Policy]] = {
    "sync": Sync,
    "cadence": Cadence,
    "async": Async,
}
"""Name -> frozen dataclass of settings."""

__all__ = ["POLICIES", "Policy"]
