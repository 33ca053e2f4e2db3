"""Policies: when replicas are averaged. One file each; they are listed here and nowhere else."""

from __future__ import annotations

from ddp.core.policies.asynchronous import Async
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.qsr import Qsr
from ddp.core.policies.sync import Sync
from ddp.registry import Registry, loaded

_OURS: dict[str, type[Policy]] = {
    "sync": Sync,
    "cadence": Cadence,
    "async": Async,
    "qsr": Qsr,
}
POLICIES: Registry[type[Policy]] = Registry("policies", _OURS, loaded())
"""Name -> frozen dataclass of settings."""
DEFAULT = "cadence"
EVERY_STEP = "sync"
"""The policy of engines and backends that synchronise only inside steps."""


def meets_every_step(name: str | None) -> bool:
    """Return whether replicas meet after every step under the policy `name`; unknown names are accepted."""
    return name is not None and name in POLICIES and POLICIES[name].every_step


__all__ = ["DEFAULT", "EVERY_STEP", "POLICIES", "Policy", "meets_every_step"]
