"""The random numbers of a run by its seed, as documented: seeds, the order of samples, and the samples' streams.

Uses only NumPy and the standard library; must not import what it checks (`ddp.data`).
"""

from __future__ import annotations

import random
from functools import lru_cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _sequence(seed: int, words: tuple[int | str, ...]) -> np.random.SeedSequence:
    """Return NumPy's SeedSequence of a seed and words: the number of words, then each number as two halves of 64
    bits."""
    entropy = [len(words)]
    for word in (seed, *words):
        number = int.from_bytes(sha256(word.encode()).digest()[:8], "little") if isinstance(word, str) else word
        entropy += [number % 2**32, number // 2**32]
    return np.random.SeedSequence(entropy)


@lru_cache(maxsize=64)
def seed_of(seed: int, *words: int | str) -> int:
    """Return the seed for the purpose that `words` name."""
    return int(_sequence(seed, words).generate_state(1, np.uint64)[0]) >> 1


def order_of(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """Return the sample indices of an epoch in order: sorted by one random number for each sample."""
    numbers = np.random.PCG64(_sequence(seed, ("order", epoch))).random_raw(samples)
    return np.argsort(numbers, kind="stable")


def seed_others(seed: int) -> None:
    """Seed Python's and NumPy's own generators, of the whole process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def step_seed(seed: int, epoch: int, start: int) -> int:
    """Return the seed of torch's generator for the pass over positions from `start` on."""
    return (seed_of(seed, "step", epoch) + start) % 2**63


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finaliser of each number."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


def keys_of(seed: int, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the key of each sample's stream."""
    return _mixed(indices.astype(np.uint64) * _GOLDEN + np.uint64(seed_of(seed, "sample", epoch)))


def numbers_of(keys: NDArray[np.uint64], places: range) -> NDArray[np.uint64]:
    """Return the numbers number `places` (from 1 on) of each stream, shape [streams, places]."""
    steps = np.array([place * int(_GOLDEN) % 2**64 for place in places], dtype=np.uint64)
    return _mixed(keys[:, None] + steps)
