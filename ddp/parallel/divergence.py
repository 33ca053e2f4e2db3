"""Detects replicas that have diverged, because an optimizer stepped on gradients that were never sent.

A rank notices a change by a sample of its parameters' values; tensors' version counters miss changes by fused optimizers
and through `.data`. The next synchronised pass tells all ranks, and only then do they compare all values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ddp.comm.transports.base import MAX
from ddp.parallel.group import Group

SAMPLE = 1024
"""Number of values that are sampled from each parameter. An optimizer step changes nearly all values."""

REMEDY = (
    "an optimizer stepped on gradients of one rank alone, as those of a forward pass inside no_sync() are, wherever its "
    "backward() is; step after a pass outside or sync_gradients(), or call sync_parameters() after steps of its own"
)


class Moved:
    """Detects whether parameters changed after this rank kept gradients that no other rank has."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._before: Tensor | None = None

    def unsent(self) -> None:
        """Note that a gradient stays on this rank for now."""
        if self._before is None:
            self._before = self._sample()

    def forget(self) -> None:
        """Reset: all ranks have the same parameters again."""
        self._before = None

    def __bool__(self) -> bool:
        """Return whether the parameters changed since the first unsent gradient."""
        return self._before is not None and not torch.equal(self._before, self._sample())

    def _sample(self) -> Tensor:
        flats = [parameter.detach().reshape(-1) for parameter in self._parameters]
        return torch.cat([flat[:: -(-flat.numel() // SAMPLE) or 1].contiguous().view(torch.uint8) for flat in flats])


def compare(group: Group, names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    """Raise ValueError on all ranks if a parameter does not have the same bits on all ranks; it names the first such
    parameter. Raises RankLost."""
    own = [float(_digest(parameter)) for parameter in parameters]
    bounds = torch.tensor([own, [-digest for digest in own]], dtype=torch.float64, device=group.device)
    group.all_reduce(bounds, MAX)
    most, least = bounds[0], -bounds[1]
    differ = torch.nonzero(most != least).flatten().tolist()
    if differ:
        raise ValueError(
            f"replicas have come apart: parameter {names[differ[0]]} is not the same on all ranks; {REMEDY}"
        )


def _digest(tensor: Tensor) -> int:
    """Return a digest of 48 bits, which a float64 represents exactly."""
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=6).digest(), "little")
