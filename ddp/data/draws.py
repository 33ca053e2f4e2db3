"""Random numbers of samples: each sample of a batch has a stream that depends only on (seed, epoch, index of the sample).

The generator is counter-based, so it has no state and samples are independent: number k of a stream is a hash of the
stream's key and k (the finaliser of SplitMix64: Steele et al., Fast splittable pseudorandom number generators, OOPSLA
2014). Integer arithmetic gives the same bits on every device and in every batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ddp.permutation import derive

# As signed integers: torch has no arithmetic on unsigned ones.
_GAMMA, _FIRST, _SECOND = (bits - (1 << 64) for bits in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
MOST = 1 << 31
"""Exclusive maximum of the number of values that an integer is drawn from."""


class Draws:
    """The random streams of the samples `indices` (int64, shape [n], on the device of the batch) in `epoch`.

    Every call takes the next numbers of all streams. A sample's numbers depend on the earlier calls, not on the other
    samples."""

    def __init__(self, seed: int, epoch: int, indices: Tensor) -> None:
        self.keys = mix(indices * _GAMMA + derive(seed, "sample", epoch))
        """Key of each sample's stream: 64 random bits, int64, shape [n]."""
        self._taken = 0

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, *shape: int) -> Tensor:
        """Draw floats from [0, 1), float32, shape [n, *shape]; multiples of 2**-24."""
        return _shifted(self._next(shape), 40).to(torch.float32) * 2.0**-24

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw integers from [low, high), int64, shape [n, *shape]. Raise ValueError unless there are 1 to 2**31 - 1 of
        them."""
        if not 0 < high - low < MOST:
            raise ValueError(f"no integer can be drawn from [{low}, {high}): give 1 to 2**31 - 1 of them")
        return (_shifted(self._next(shape), 32) * (high - low) >> 32) + low

    def _next(self, shape: tuple[int, ...]) -> Tensor:
        """Draw 64 random bits each, int64, shape [n, *shape]. Raise ValueError for sizes that are no integers."""
        if wrong := [size for size in shape if not isinstance(size, int)]:
            raise ValueError(f"{wrong[0]!r} is no size: draws are of [0, 1), `uniform(3)` of shape [batch, 3]")
        count = math.prod(shape)
        places = torch.arange(self._taken + 1, self._taken + 1 + count, device=self.keys.device)
        self._taken += count
        return mix(self.keys[:, None] + places * _GAMMA).view(len(self.keys), *shape)


def mix(bits: Tensor) -> Tensor:
    """Return a 64-bit hash of each number (int64, any shape); each bit depends on all bits of the number. The finaliser
    alone."""
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right, as if unsigned."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
