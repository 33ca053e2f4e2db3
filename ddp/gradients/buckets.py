"""Own which gradients travel together, and when. Pure: knows sizes and order, no tensors and no ranks.

Gradients come roughly in the reverse order of creation, so buckets are filled in that order: the first ones are complete,
and under way, while the rest of the backward pass still runs. Ranks may see gradients come in different orders, but a
collective needs the same order everywhere: a bucket goes after the one before it, never earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FIRST_BYTES = 1 << 20
"""The first bucket is small, so that it is under way early."""
BUCKET_BYTES = 25 << 20
"""The field's default."""
Plan = Sequence[tuple[int, ...]]
"""Buckets in the order in which they are sent, each the indices of its members."""
WORTHWHILE_BYTES = 4 << 20
"""Gradients of fewer bytes travel together, at the end of the backward pass: less time than a second thread costs."""


def caps(total: int, spare: bool) -> tuple[float, ...]:
    """Return the sizes of buckets for `total` bytes of gradients, or none where they all go at the end of the pass.

    `spare`: something other than the ranks' cores moves them meanwhile: a core to spare, another host's link, a GPU.
    """
    return (FIRST_BYTES, BUCKET_BYTES) if spare and total >= WORTHWHILE_BYTES else ()


@dataclass(frozen=True)
class Item:
    """One parameter: its size, and its kind (data type), of which there is one in a bucket."""

    size: int
    kind: str = ""


def assign(items: Sequence[Item], caps: Sequence[float] = (FIRST_BYTES, BUCKET_BYTES)) -> list[tuple[int, ...]]:
    """Return buckets of indices into `items`, in the order in which they are to be sent.

    The bucket that is opened as number k holds at most `caps[k]` (the last cap is that of all others), or one item that is
    larger. Raises ValueError for a cap that is not positive.
    """
    if not caps or min(caps) <= 0:
        raise ValueError(f"the sizes of buckets must be positive, not {list(caps)}")
    buckets: list[list[int]] = []
    filled: list[int] = []
    open_of: dict[str, int] = {}
    for index in reversed(range(len(items))):
        item = items[index]
        at = open_of.get(item.kind)
        if at is None or filled[at] + item.size > caps[min(at, len(caps) - 1)]:
            at = open_of[item.kind] = len(buckets)
            buckets.append([])
            filled.append(0)
        buckets[at].append(index)
        filled[at] += item.size
    # Each is complete with its last member: the smallest index.
    return sorted((tuple(bucket) for bucket in buckets), key=lambda bucket: -bucket[-1])


class Launches:
    """Decide in one backward pass after the other which buckets may go, given which items have come."""

    def __init__(self, buckets: Plan) -> None:
        self._sizes = [len(bucket) for bucket in buckets]
        self._bucket = {index: at for at, bucket in enumerate(buckets) for index in bucket}
        self.reset()

    def reset(self) -> None:
        """Begin a new pass: nothing has come."""
        self._left = list(self._sizes)
        self._came: set[int] = set()
        self.launched = 0
        """Buckets that have gone."""

    def arrive(self, index: int) -> Iterator[int]:
        """Note that this item is complete; yields the buckets that may go now. Raises ValueError if its bucket has gone."""
        at = self._bucket[index]
        if index in self._came:
            if at < self.launched:
                raise ValueError("came again after it was sent")
            return
        self._came.add(index)
        self._left[at] -= 1
        while self.launched < len(self._left) and not self._left[self.launched]:
            self.launched += 1
            yield self.launched - 1

    def rest(self) -> Iterator[int]:
        """End the pass; yields the buckets that have not gone."""
        while self.launched < len(self._left):
            self.launched += 1
            yield self.launched - 1
