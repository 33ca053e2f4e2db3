"""Own which elements of each tensor a rank has. Pure arithmetic: knows neither tensors nor ranks' processes.

Tensors are concatenated, and the sequence is cut into ranges of about equal length, one for each rank. A cut inside a
tensor is at a multiple of `GRAIN` elements from its beginning. An element-wise operation then treats every element in the
same part of its vector loop as in the whole tensor, so a shard has the same bits.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ddp.comm.transports.base import ShardRange

GRAIN = 64
"""Elements that are never separated by a cut; no processor's vector loop handles more at a time."""

Fragment = tuple[int, int, int]
"""(index of the tensor, first element in it, end in it)."""


@dataclass(frozen=True)
class Layout:
    """Tensors of `sizes` elements, divided over `world_size` ranks."""

    sizes: tuple[int, ...]
    world_size: int

    def __post_init__(self) -> None:
        starts = (0, *accumulate(self.sizes))
        total = starts[-1]
        inner = (_nearest(starts, total * rank // self.world_size) for rank in range(1, self.world_size))
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "cuts", (0, *inner, total))

    starts: tuple[int, ...] = ()
    """Offset of each tensor in the sequence, and the total length; computed."""
    cuts: tuple[int, ...] = ()
    """Offset of each rank's range in the sequence, and the total length; computed."""

    def length(self, rank: int) -> int:
        """Return how many elements `rank` owns."""
        return self.cuts[rank + 1] - self.cuts[rank]

    def fragments(self, rank: int) -> list[Fragment]:
        """Return the part of each tensor that `rank` owns, in order."""
        first, last = self.cuts[rank], self.cuts[rank + 1]
        spans = enumerate(pairwise(self.starts))
        clipped = ((index, max(first, start) - start, min(last, stop) - start) for index, (start, stop) in spans)
        return [(index, start, stop) for index, start, stop in clipped if start < stop]

    def runs(self, first: int, last: int) -> list[ShardRange]:
        """Return the owners of the range [first, last) of the sequence, with offsets from `first`."""
        clipped = ((rank, max(a, first), min(b, last)) for rank, (a, b) in enumerate(pairwise(self.cuts)))
        return [(rank, start - first, stop - first) for rank, start, stop in clipped if start < stop]

    def span(self, index: int) -> tuple[int, int]:
        """Return the (start, stop) of a tensor in the sequence."""
        return self.starts[index], self.starts[index + 1]


def _nearest(starts: tuple[int, ...], target: int) -> int:
    """Return the allowed cut that is nearest to `target`."""
    index = min(bisect_right(starts, target), len(starts) - 1) - 1
    if index < 0:
        return 0
    start, stop = starts[index], starts[index + 1]
    return min(start + (target - start + GRAIN // 2) // GRAIN * GRAIN, stop)
