"""Defines `tally`: an order-independent checksum of a collection of samples. The checksums of all ranks can be added.

It is the sum of hashed indices. A sample that is missing or repeated changes the sum, and so does nearly surely any other
mistake. The ranks' tallies of an epoch sum (modulo `MODULUS`) to the tally of all samples if each sample was visited once.
`order_tally` also depends on the positions at which samples were visited. Imports no torch: validation uses it without.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MODULUS = 1 << 62
"""Tallies are below this, so they fit a signed 64-bit integer."""
START, STEPS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST = 31
"""Constants of SplitMix64 (Steele et al. 2014): START is an addend, STEPS are (shift, factor), LAST is a shift."""


def mixed(numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each number; each bit depends on all bits of the number."""
    bits = np.asarray(numbers, dtype=np.int64).astype(np.uint64) + np.uint64(START)
    for shift, factor in STEPS:
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(LAST))


def tally(indices: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the checksum of the samples with these indices, in [0, MODULUS)."""
    return int(mixed(indices).sum(dtype=np.uint64)) % MODULUS


def order_tally(positions: NDArray[np.int64], indices: NDArray[np.int64]) -> int:
    """Return the checksum of samples at positions of an epoch, in [0, MODULUS). Both arrays have shape [n]."""
    return tally(mixed(positions).view(np.int64) + np.asarray(indices, dtype=np.int64))
