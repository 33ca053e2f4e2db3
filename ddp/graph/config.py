"""Defines `DdpConfig`: the settings for training a graph, and the policy that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ddp.core.policies import DEFAULT, EVERY_STEP, POLICIES, Policy
from ddp.graph.devices import heterogeneous
from ddp.graph.timed_workers import Listener
from ddp.settings import emulated, listed, make_policy, norm_limit

ANCHOR = 10
MAX_ANCHOR = 200


@dataclass(frozen=True)
class DdpConfig:
    """Settings of `setup_with`. Raises ValueError for invalid ones.

    `speed_hint` and `speeds` have one entry for each device.
    """

    speed_hint: Sequence[float] | None = None
    """Relative speeds to begin with; measurements replace them."""
    overhead_target: float = 0.10
    """El Che: fraction of a window that a reduction may cost."""
    max_anchor: int | None = None
    """Largest El Che window, in batches of the slowest device; 0: no El Che. None: El Che with the default limit if the
    devices, `speeds` or `speed_hint` are unequal, else none."""
    max_grad_norm: float | None = None
    """Limit of the L2 norm of the reduced gradients of a step, so the result is the same for any number of devices; None:
    no limit."""
    timeline: Listener | None = None
    """A `ddp.Timeline`, or a function (record, time) -> None. Receives every record: slices of the replicas' time, plans,
    closed windows (`ddp.core`)."""
    devices: Sequence[str | torch.device] | None = None
    """Devices of the replicas. None: all CUDA devices if there are two or more. `["cpu", "cpu"]`: two replicas on the
    CPU."""
    speeds: Sequence[float] = ()
    """Emulated relative speed of each device, in (0, 1]; empty: full speed."""
    parallel: bool = True
    """Whether replicas run in threads. False: one after the other, with bit-identical results."""

    def __post_init__(self) -> None:
        most = self.max_anchor
        if most is not None and (not isinstance(most, int) or most < 0):
            raise ValueError(f"max_anchor={most!r}: give 1 or more, 0 for no El Che, None to have it decided")
        hint = None if self.speed_hint is None else listed("speed_hint", self.speed_hint, "[1.0, 0.4]")
        make_policy(DEFAULT, {"overhead_target": self.overhead_target, "speed_hint": hint})
        norm_limit("max_grad_norm", self.max_grad_norm)
        emulated("speeds", self.speeds)

    def policy(self, devices: Sequence[torch.device]) -> Policy:
        """Return the policy that decides when gradients are reduced."""
        unequal = heterogeneous(devices) or any(len(set(each)) > 1 for each in (self.speeds, self.speed_hint or ()))
        if self.max_anchor == 0 or not (unequal or self.max_anchor):
            return POLICIES[EVERY_STEP]()
        most = self.max_anchor or MAX_ANCHOR
        settings: dict[str, Any] = {"anchor": min(ANCHOR, most), "max_anchor": most, "no_divergence_guard": True}
        settings |= {"overhead_target": self.overhead_target, "speed_hint": tuple(self.speed_hint or ()) or None}
        return POLICIES[DEFAULT](**settings)
