"""Finds the replicas that differ from the majority. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def strangers(digests: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the digests that differ from the majority; all indices if no digest has more than half."""
    ((most, votes),) = Counter(digests).most_common(1)
    if 2 * votes <= len(digests):
        return tuple(range(len(digests)))
    return tuple(place for place, digest in enumerate(digests) if digest != most)
