"""`tally`: a number for a collection of samples, whatever their order, so that what ranks trained can be added up.

Sums of mixed indices: a sample that is missing, or there twice, changes the sum, and so does nearly surely any other slip.
The ranks' tallies of an epoch add up (modulo `MODULUS`) to that of all samples exactly if each was visited once.
`order_tally` depends on the positions at which they were visited, too. NumPy alone: what judges runs has no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MODULUS = 1 << 62
"""Fits a signed integer of 64 bits, whatever reads it."""
START, STEPS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST = 31
"""The mixing of SplitMix64 (Steele et al. 2014): an addend, then shifts and factors, then a shift."""


def mixed(numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 bits for each number, of which each depends on all of its bits."""
    bits = np.asarray(numbers, dtype=np.int64).astype(np.uint64) + np.uint64(START)
    for shift, factor in STEPS:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(LAST))


def tally(indices: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the number of samples given by their indices, in [0, MODULUS)."""
    return int(mixed(indices).sum(dtype=np.uint64)) % MODULUS


def order_tally(positions: NDArray[np.int64], indices: NDArray[np.int64]) -> int:
    """Return the number of samples at positions of an epoch, in [0, MODULUS); both of shape [n]."""
    return tally(mixed(positions).view(np.int64) + np.asarray(indices, dtype=np.int64))
