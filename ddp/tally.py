"""`tally`: a number for a collection of samples, whatever their order, so that what ranks trained can be added up.

Sums of mixed indices: a sample that is missing, or there twice, changes the sum, and so does nearly surely any other slip.
The ranks' tallies of an epoch add up (modulo `MODULUS`) to that of all samples exactly if each was visited once. NumPy
alone: what judges runs has no torch.
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


def tally(indices: Sequence[int] | NDArray[np.int64]) -> int:
    """Return the number of samples given by their indices, in [0, MODULUS)."""
    mixed = np.asarray(indices, dtype=np.int64).astype(np.uint64) + np.uint64(START)
    for shift, factor in STEPS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int((mixed ^ (mixed >> np.uint64(LAST))).sum(dtype=np.uint64)) % MODULUS
