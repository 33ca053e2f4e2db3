"""`DdpConfig`: how a graph is trained, and the policy that follows from it.

Owns the settings of users. Must not know what follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddp.core.policies import DEFAULT, EVERY_STEP, POLICIES, Policy
from ddp.graph.devices import heterogeneous
from ddp.graph.timed_workers import Listener
from ddp.settings import emulated, norm_limit

ANCHOR = 10
MAX_ANCHOR = 200


@dataclass(frozen=True)
class DdpConfig:
    """Settings of `setup_with`. Raises ValueError for what cannot be.

    `speed_hint` and `speeds` have an entry for each device.
    """

    speed_hint: Sequence[float] | None = None
    """Relative speeds to begin with; they correct themselves with the first measurements."""
    overhead_target: float = 0.10
    """El Che: what the cohort may lose by a reduction, as a fraction of the window."""
    max_anchor: int | None = None
    """None: El Che where the devices are unequal (or said to be); 0: never; else always, in windows of at
    most so many batches of the slowest device."""
    max_grad_norm: float | None = None
    """Most that the L2 norm of a step's gradients may be, after they are reduced: the same on any number of devices."""
    timeline: Listener | None = None
    """A `ddp.Timeline`, or a function: receives every record and its time: slices of the replicas' time, plans, closed
    windows (`ddp.core`)."""
    devices: Sequence[str | torch.device] | None = None
    """None: every CUDA device if there are two or more. `["cpu", "cpu"]`: two replicas on the CPU."""
    speeds: Sequence[float] = ()
    """Emulated relative speed of each device in (0, 1]; empty: as fast as it goes."""
    parallel: bool = True
    """Replicas run in threads; else one after the other, to the same bits."""

    def __post_init__(self) -> None:
        if self.max_anchor is not None and self.max_anchor < 0:
            raise ValueError(f"max_anchor={self.max_anchor}: give 1 or more, 0 for no El Che, None to have it decided")
        norm_limit("max_grad_norm", self.max_grad_norm)
        emulated("speeds", self.speeds)

    def policy(self, devices: Sequence[torch.device]) -> Policy:
        """Return when the replicas meet."""
        unequal = heterogeneous(devices) or any(len(set(each)) > 1 for each in (self.speeds, self.speed_hint or ()))
        if self.max_anchor == 0 or not (unequal or self.max_anchor):
            return POLICIES[EVERY_STEP]()
        most = self.max_anchor or MAX_ANCHOR
        settings: dict[str, Any] = {"anchor": min(ANCHOR, most), "max_anchor": most, "no_divergence_guard": True}
        settings |= {"overhead_target": self.overhead_target, "speed_hint": tuple(self.speed_hint or ()) or None}
        return POLICIES[DEFAULT](**settings)
