"""How many samples make one step: where they are as many, training is the same, whatever the number of ranks. Pure."""

from __future__ import annotations

from bench.results.schema import Metrics
from ddp.core.policies import meets_every_step

ALONE = ("torch_local_sgd",)
"""Backends that meet after every step by name, and whose ranks step for themselves in between."""
REPLICAS = ("cpu",)
"""Backends that average replicas, not gradients: with an optimizer that has state, that is another step."""


def global_batch(m: Metrics) -> int | None:
    """Return the samples of one step of all ranks together; None where each steps for itself, or at a scaled rate."""
    if m.world_size == 1:
        return m.batch_size
    together = meets_every_step(m.policy) and m.backend not in ALONE
    return m.batch_size * m.world_size if together and m.lr_scale == 1.0 else None


def same_step(m: Metrics) -> bool:
    """Return whether ranks step with the mean gradient of their global batch, so that only rounding tells them from solo."""
    return global_batch(m) is not None and (m.world_size == 1 or m.backend not in REPLICAS)
