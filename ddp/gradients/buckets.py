"""Own which gradients share a bucket, and when it is sent. Pure: knows sizes and order, neither tensors nor ranks.

Gradients arrive roughly in the reverse order of the parameters, so buckets are filled in that order: the first ones are
complete and sent while the rest of the backward pass still runs. Gradients may arrive in different orders on different
ranks, but collectives need the same order everywhere. A bucket is therefore sent only after the bucket before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FIRST_BYTES = 1 << 20
"""Size of the first bucket. It is small, so that communication begins early."""
BUCKET_BYTES = 25 << 20
"""Size of all further buckets: the default of torch's DistributedDataParallel."""
Plan = Sequence[tuple[int, ...]]
"""Buckets in the order in which they are sent. Each is a tuple of the indices of its parameters."""
WORTHWHILE_BYTES = 4 << 20
"""Below this size, all gradients are sent together at the end of the backward pass: that costs less time than a second
thread."""


def caps(total: int, spare: bool) -> tuple[float, ...]:
    """Return bucket sizes for `total` bytes of gradients, or () if all gradients are sent at the end of the backward pass.

    `spare`: whether something other than the ranks' cores moves the data: a spare core, a link to another host, a GPU.
    """
    return (FIRST_BYTES, BUCKET_BYTES) if spare and total >= WORTHWHILE_BYTES else ()


@dataclass(frozen=True)
class Item:
    """One parameter: its size, and its kind (data type). A bucket has one kind."""

    size: int
    kind: str = ""


def assign(items: Sequence[Item], caps: Sequence[float] = (FIRST_BYTES, BUCKET_BYTES)) -> list[tuple[int, ...]]:
    """Return buckets of indices into `items`, in the order in which they are to be sent.

    Bucket number k, in the order of opening, holds at most `caps[k]` (the last cap applies to all further buckets), or a
    single larger item. Raises ValueError for a cap that is not positive.
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
    # A bucket is complete with its last member, which has the smallest index.
    return sorted((tuple(bucket) for bucket in buckets), key=lambda bucket: -bucket[-1])


class Launches:
    """Decides in each backward pass which buckets may be sent, from the items that have arrived."""

    def __init__(self, buckets: Plan) -> None:
        self._sizes = [len(bucket) for bucket in buckets]
        self._bucket = {index: at for at, bucket in enumerate(buckets) for index in bucket}
        self.reset()

    def reset(self) -> None:
        """Begin a new pass, in which no item has arrived."""
        self._left = list(self._sizes)
        self._came: set[int] = set()
        self.launched = 0
        """Number of buckets sent."""

    def arrive(self, index: int) -> Iterator[int]:
        """Note that item `index` is complete; yields the buckets that may be sent now. Raises ValueError if its bucket was
        sent already."""
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
        """End the pass; yields the buckets that are not sent yet."""
        while self.launched < len(self._left):
            self.launched += 1
            yield self.launched - 1
