"""Own which elements of which tensor a rank has. Pure arithmetic: knows no tensors and no ranks' processes.

Tensors lie one behind another on a line, which is cut into as many stretches of equal length as there are ranks. A cut
inside a tensor lies at a multiple of `GRAIN` elements from its beginning: an element-wise operation then treats every
element in the same part of its vector loop as it would in the whole tensor, so a shard has the bits of the whole.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ddp.comm.transports.base import ShardRange

GRAIN = 64
"""Elements that are not cut apart; more than any processor's vector loop takes at a time."""

Fragment = tuple[int, int, int]
"""(index of the tensor, first element in it, end in it)."""


@dataclass(frozen=True)
class Layout:
    """Tensors of `sizes` elements, cut up for `world_size` ranks."""

    sizes: tuple[int, ...]
    world_size: int

    def __post_init__(self) -> None:
        starts = (0, *accumulate(self.sizes))
        total = starts[-1]
        inner = (_nearest(starts, total * rank // self.world_size) for rank in range(1, self.world_size))
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "cuts", (0, *inner, total))

    starts: tuple[int, ...] = ()
    """Where each tensor begins on the line, and the line's length; made from the others."""
    cuts: tuple[int, ...] = ()
    """Where each rank's stretch begins, and the line's length; made from the others."""

    def length(self, rank: int) -> int:
        """Return how many elements `rank` owns."""
        return self.cuts[rank + 1] - self.cuts[rank]

    def fragments(self, rank: int) -> list[Fragment]:
        """Return what `rank` owns of each tensor, in the order of the line."""
        first, last = self.cuts[rank], self.cuts[rank + 1]
        spans = enumerate(pairwise(self.starts))
        clipped = ((index, max(first, start) - start, min(last, stop) - start) for index, (start, stop) in spans)
        return [(index, start, stop) for index, start, stop in clipped if start < stop]

    def runs(self, first: int, last: int) -> list[ShardRange]:
        """Return who owns what of the stretch [first, last) of the line, counted from `first`."""
        clipped = ((rank, max(a, first), min(b, last)) for rank, (a, b) in enumerate(pairwise(self.cuts)))
        return [(rank, start - first, stop - first) for rank, start, stop in clipped if start < stop]

    def span(self, index: int) -> tuple[int, int]:
        """Return where a tensor lies on the line."""
        return self.starts[index], self.starts[index + 1]


def _nearest(starts: tuple[int, ...], target: int) -> int:
    """Return the place nearest to `target` that may be cut."""
    index = min(bisect_right(starts, target), len(starts) - 1) - 1
    if index < 0:
        return 0
    start, stop = starts[index], starts[index + 1]
    return min(start + (target - start + GRAIN // 2) // GRAIN * GRAIN, stop)
