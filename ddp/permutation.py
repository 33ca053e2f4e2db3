"""Derives all randomness: seeds from keys, and the order of samples in an epoch.

Uses only what NumPy promises never to change (SeedSequence and the raw output of PCG64, NEP 19), so a seed gives the same
order with every version of torch and NumPy. Knows neither ranks nor partitions. Imports no torch: validation recomputes
orders without it.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.random import PCG64, SeedSequence
from numpy.typing import NDArray


def derive(seed: int, *keys: int | str) -> int:
    """Derive a seed in [0, 2**63) for the purpose named by `keys`, such as ("model",) or ("dropout", epoch, rank).

    Different keys, another order or another number of keys give an unrelated seed. Raise ValueError for a number outside of
    [0, 2**64)."""
    return int(_sequence(seed, keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def permutation(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """Return the order in which epoch `epoch` visits samples: a permutation, shape [samples]. Raise ValueError for
    fewer than 0 samples."""
    if samples < 0:
        raise ValueError(f"an epoch cannot have {samples} samples; give 0 or more")
    # Sort raw 64-bit draws: NumPy may change the algorithm of Generator.permutation.
    draws = PCG64(_sequence(seed, ("order", epoch))).random_raw(samples)
    places = np.argsort(draws)
    ordered = draws[places]
    if (ordered[1:] == ordered[:-1]).any():  # Without ties the order is unique; a stable sort takes six times as long.
        places = np.argsort(draws, kind="stable")
    return places.astype(np.int64, copy=False)


def visited(seed: int, epoch: int, samples: int, length: int) -> NDArray[np.int64]:
    """Return the sample indices that an epoch of `length` positions visits, shape [length]: the beginning of one
    permutation of all samples, or several permutations in sequence, the last one cut."""
    passes = -(-length // samples) if samples else 0
    orders = [permutation(seed, epoch * passes + number, samples) for number in range(passes)]
    return np.concatenate(orders)[:length] if len(orders) != 1 else orders[0][:length]


def _sequence(seed: int, keys: tuple[int | str, ...]) -> SeedSequence:
    # SeedSequence pads with zeros and cuts numbers into 32-bit words, so it does not distinguish [1], [1, 0] and
    # [2**32 + 1]. The count in front and two words for each number make them distinct.
    words = [len(keys)]
    for key in (seed, *keys):
        number = key if isinstance(key, int) else int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
        if not 0 <= number < 2**64:
            raise ValueError(f"a seed or key must be in [0, 2**64), got {number}")
        words += [number & 0xFFFFFFFF, number >> 32]
    return SeedSequence(words)
