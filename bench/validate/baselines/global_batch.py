"""The number of samples in one optimizer step. With equal numbers, training is the same for any number of ranks.
Pure."""

from __future__ import annotations

from bench.results.schema import Metrics
from ddp.core.policies import meets_every_step

ALONE = ("torch_local_sgd",)
"""Backends whose policy says that ranks synchronize every step, but whose ranks also take steps of their own."""
REPLICAS = ("cpu",)
"""Backends that average replicas instead of gradients, which is another step if the optimizer has state."""


def global_batch(m: Metrics) -> int | None:
    """Return the samples of one step of all ranks together; None if ranks step separately, or at a scaled rate."""
    if m.world_size == 1:
        return m.batch_size
    together = meets_every_step(m.policy) and m.backend not in ALONE
    return m.batch_size * m.world_size if together and m.lr_scale == 1.0 else None


def same_step(m: Metrics) -> bool:
    """Return whether ranks step with the mean gradient of their global batch, so that they differ from solo only by
    rounding."""
    return global_batch(m) is not None and (m.world_size == 1 or m.backend not in REPLICAS)
