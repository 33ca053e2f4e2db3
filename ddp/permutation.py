"""Where randomness comes from: seeds derived from keys, and the order of samples in an epoch.

Built on what NumPy promises never to change (SeedSequence and the raw output of PCG64, NEP 19), so the same seed means
the same order whatever the versions of torch and NumPy. Knows neither ranks nor partitions. NumPy alone: what judges runs
makes orders anew, and has no torch.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.random import PCG64, SeedSequence
from numpy.typing import NDArray


def derive(seed: int, *keys: int | str) -> int:
    """Derive a seed in [0, 2**63) for the purpose named by `keys`, such as ("model",) or ("dropout", epoch, rank).

    Other keys, or the same in another order or number, give an unrelated seed. Raise ValueError for a number below 0 or from
    2**64 up."""
    return int(_sequence(seed, keys).generate_state(1, np.uint64)[0] >> np.uint64(1))


def permutation(seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
    """Return the order in which epoch `epoch` visits samples: a permutation, shape [samples]."""
    if samples < 0:
        raise ValueError(f"an epoch cannot have {samples} samples; give 0 or more")
    # Sorting raw 64-bit draws rather than Generator.permutation, whose algorithm NumPy is free to change.
    draws = PCG64(_sequence(seed, ("order", epoch))).random_raw(samples)
    places = np.argsort(draws)
    ordered = draws[places]
    if (ordered[1:] == ordered[:-1]).any():  # Else one order is possible, and a stable sort takes six times as long.
        places = np.argsort(draws, kind="stable")
    return places.astype(np.int64, copy=False)


def visited(seed: int, epoch: int, samples: int, length: int) -> NDArray[np.int64]:
    """Return what an epoch of `length` positions visits, shape [length]: a permutation of all samples, or its beginning, or
    several one after the other, the last one cut."""
    passes = -(-length // samples) if samples else 0
    orders = [permutation(seed, epoch * passes + number, samples) for number in range(passes)]
    return np.concatenate(orders)[:length] if len(orders) != 1 else orders[0][:length]


def _sequence(seed: int, keys: tuple[int | str, ...]) -> SeedSequence:
    # SeedSequence pads with zeros and cuts numbers into 32-bit words, so [1], [1, 0] and [2**32 + 1] run together
    # there: the count in front and two words for each number keep them apart.
    words = [len(keys)]
    for key in (seed, *keys):
        number = key if isinstance(key, int) else int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
        if not 0 <= number < 2**64:
            raise ValueError(f"a seed or key must be in [0, 2**64), got {number}")
        words += [number & 0xFFFFFFFF, number >> 32]
    return SeedSequence(words)
