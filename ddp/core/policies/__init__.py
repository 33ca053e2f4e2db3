"""When replicas are brought together. One file each; their names are said here and nowhere else."""

from __future__ import annotations

from ddp.core.policies.asynchronous import Async
from ddp.core.policies.base import Policy
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.qsr import Qsr
from ddp.core.policies.sync import Sync

POLICIES: dict[str, type[Policy]] = {
    "sync": Sync,
    "cadence": Cadence,
    "async": Async,
    "qsr": Qsr,
}
"""Name -> frozen dataclass of settings."""
DEFAULT = "cadence"
EVERY_STEP = "sync"
"""What engines go by that bring replicas together in every step, and by nothing else."""


def meets_every_step(name: str | None) -> bool:
    """Return whether replicas meet after every step under the policy `name`, which may be of another version."""
    return name in POLICIES and POLICIES[name].every_step


__all__ = ["DEFAULT", "EVERY_STEP", "POLICIES", "Policy", "meets_every_step"]
