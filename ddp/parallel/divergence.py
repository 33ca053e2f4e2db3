"""Own whether replicas have come apart: parameters that moved by gradients that were never sent.

Noticed on one rank by a sample of the values; tensors' own counts of changes miss what fused optimizers and `.data` do. All
ranks hear of it in the next synchronised pass, and only then compare all values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ddp.comm.transports.base import MAX
from ddp.parallel.group import Group

SAMPLE = 1024
"""Values that are looked at of each parameter. A step moves nearly all of them."""

REMEDY = (
    "an optimizer stepped on gradients of one rank alone, as those of a forward pass inside no_sync() are, wherever its "
    "backward() is; step after a pass outside or sync_gradients(), or call sync_parameters() after steps of its own"
)


class Moved:
    """Notices whether these parameters moved since gradients came that no other rank has."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._before: Tensor | None = None

    def unsent(self) -> None:
        """Note a gradient that stays here for now."""
        if self._before is None:
            self._before = self._sample()

    def forget(self) -> None:
        """Begin anew: all ranks are alike again."""
        self._before = None

    def __bool__(self) -> bool:
        """Return whether they were changed since."""
        return self._before is not None and not torch.equal(self._before, self._sample())

    def _sample(self) -> Tensor:
        flats = [parameter.detach().reshape(-1) for parameter in self._parameters]
        return torch.cat([flat[:: -(-flat.numel() // SAMPLE) or 1].contiguous().view(torch.uint8) for flat in flats])


def compare(group: Group, names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    """Raise ValueError on all ranks, naming the first parameter that has not the same bits on all. Raises RankLost."""
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
    """Return a digest of 48 bits, which float64 holds."""
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=6).digest(), "little")
