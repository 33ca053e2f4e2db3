"""Which replicas are not as the others are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def strangers(digests: Sequence[int]) -> tuple[int, ...]:
    """Return the places of the digests that differ from more than half of all; every place where so many agree on none."""
    ((most, votes),) = Counter(digests).most_common(1)
    if 2 * votes <= len(digests):
        return tuple(range(len(digests)))
    return tuple(place for place, digest in enumerate(digests) if digest != most)
