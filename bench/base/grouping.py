"""Values grouped, or added up, by a key. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", int, float)


def grouped(pairs: Iterable[tuple[K, V]]) -> defaultdict[K, list[V]]:
    """Return key -> its values, both in the order of `pairs` of (key, value). A key without values has an empty list."""
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def summed(pairs: Iterable[tuple[K, N]]) -> defaultdict[K, N]:
    """Return key -> the sum of its values, from `pairs` of (key, value). A key without values has 0."""
    sums: defaultdict[K, N] = defaultdict(int)
    for key, value in pairs:
        sums[key] += value
    return sums
