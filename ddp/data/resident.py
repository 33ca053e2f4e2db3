"""Defines `Resident`: batches of data that is on the device as a whole, gathered there by index."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor

from ddp.core.samples.spans import Batch
from ddp.data.gather import Gather, kept, same

AT_ONCE, BLOCK_BYTES = 64, 1 << 22
"""Maximum number, and bytes, of small batches gathered in one call: a call to torch takes longer than a small batch."""
ALIGNED = 64
"""Alignment in bytes of batches in a block, as of separately allocated tensors: kernels, and so bits, depend on it."""


class Resident:
    """Batches of data that is on the device as a whole. Same methods as `ddp.data.streaming.Streaming`."""

    kind = "resident"

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        self._granted: Iterator[Batch] = iter(())
        self._cut: deque[tuple[Batch, Any]] = deque()
        """Batches gathered together with an earlier one, before augmentation."""
        self._most = AT_ONCE if gather.separable else 1

    def expect(self, granted: Iterable[Batch]) -> None:
        self._granted, self._cut = kept(self._cut, granted)

    def get(self, batch: Batch) -> Any:
        while self._cut:
            first, value = self._cut.popleft()
            if same(first, batch):
                return self.gather.finished(batch, value)
        if self._most == 1:
            return self.gather(batch)
        return self.gather.finished(batch, self._block(batch))

    def visited(self) -> int:
        return self.gather.visited()

    def close(self) -> None:
        """Do nothing: there is no thread."""

    def _block(self, batch: Batch) -> Any:
        """Return the data set's output for `batch`, and store it for the batches after it that are gathered in the same
        call."""
        run = self._run(batch)
        if len(run) == 1:
            return self.gather.read(batch, self.gather.indices(batch))
        read: tuple[Tensor, ...] = self.gather.read(batch, self._indices(run))
        pieces = list(zip(*[tensor.chunk(len(run)) for tensor in read], strict=True))
        self._cut.extend(zip(run[1:], pieces[1:], strict=True))
        return pieces[0]

    def _run(self, batch: Batch) -> list[Batch]:
        """Return `batch` and the granted batches after it that have the same size and epoch."""
        run, most, samples = [batch], self._fit(batch), batch.samples
        for other in self._granted:
            if same(other, batch):
                continue
            if len(run) == most or other.epoch != batch.epoch or other.samples != samples:
                self._granted = chain((other,), self._granted)
                break
            run.append(other)
        return run

    def _indices(self, run: list[Batch]) -> Tensor:
        """Return the indices of batches of equal size. They are at equal distances in the epoch's order, except between two
        grants."""
        first, last = run[0], run[-1]
        apart = run[1].start - first.start
        if any(after.start - before.start != apart for before, after in pairwise(run)) or apart < 1:
            return torch.cat([self.gather.indices(batch) for batch in run])
        spanned = self.gather.indices(first._replace(stop=last.stop))
        return spanned if apart == first.samples else spanned.unfold(0, first.samples, apart).reshape(-1)

    def _fit(self, batch: Batch) -> int:
        """Return the number of batches in a block."""
        sizes = [samples * batch.samples for samples in self.gather.sample_bytes]
        if any(size % ALIGNED for size in sizes):
            return 1
        return max(min(self._most, BLOCK_BYTES // max(sum(sizes), 1)), 1)
