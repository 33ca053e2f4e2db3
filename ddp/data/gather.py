"""Defines `Gather`: reads a batch. Samples by their positions in an epoch, augmented, on a device; in any thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from threading import Lock
from typing import Any, TypeVar

import torch

from ddp.core.samples.spans import Batch
from ddp.data.augment import Augment, augmented
from ddp.data.contents import members
from ddp.data.dataset import DRAWING
from ddp.data.draws import Draws
from ddp.data.epoch_order import EpochOrder
from ddp.data.source import TensorSource, every, move
from ddp.tally import MODULUS, tally

AT_ONCE = 256
"""Number of batches whose indices are collected before they are tallied: a tally of all takes as long as of one."""
MOST_GIVEN = 1 << 10
"""Number of batches for which the data set's output is kept."""
T = TypeVar("T")


def same(batch: Batch, other: Batch) -> bool:
    """Return whether two batches are the same samples of the same epoch."""
    return batch.start == other.start and batch.stop == other.stop and batch.epoch == other.epoch


def kept(
    prepared: Iterable[tuple[Batch, T]], granted: Iterable[Batch]
) -> tuple[Iterator[Batch], deque[tuple[Batch, T]]]:
    """Return (batches of `granted` still to be prepared, entries of `prepared` that are still granted), both in order.

    Other prepared batches were revoked. Empty batches are left out."""
    coming: Iterator[Batch] = (batch for batch in granted if batch.samples)
    still: deque[tuple[Batch, T]] = deque()
    for batch, value in prepared:
        expected = next(coming, None)
        if expected is None or not same(batch, expected):
            return (coming if expected is None else chain((expected,), coming)), still
        still.append((batch, value))
    return coming, still


class Gather:
    """Reads batches, for both kinds of loader."""

    def __init__(
        self, source: Any, visits: EpochOrder, augment: Augment | None, at: torch.device, to: torch.device
    ) -> None:
        """`source` gives batches on device `at`; they are augmented on device `to`."""
        self.source, self._visits, self._augment = source, visits, augment
        self._at, self._to = at, to
        self.separable: bool = getattr(source, "separable", getattr(type(source), "batch", None) is TensorSource.batch)
        """Whether reading several batches together gives the same bits as reading them one by one."""
        tensors: tuple[torch.Tensor, ...] = getattr(source, "tensors", ())
        self.sample_bytes = [tensor.nbytes // max(len(tensor), 1) for tensor in tensors]
        """Bytes of a sample in each tensor of the source, if it has tensors."""
        self._drawn = isinstance(source, DRAWING)
        self._asked: list[torch.Tensor] = []
        self._tallied, self._lock = 0, Lock()
        self._given: dict[Batch, tuple[Any, list[int]]] | None = None
        """Batch -> what the data set gave for it, and its versions, as the user's augmentation may write into it."""
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))
        self._stream = torch.cuda.Stream(to) if to != at and to.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: Batch) -> Any:
        """Return the batch on device `to`; as `Staged` if it is copied from the host to a GPU."""
        indices = self.indices(batch)
        if self._stream is not None:
            return self._staged(batch, indices)
        return self.finished(batch, self.read(batch, indices), indices)

    def some(self, samples: int) -> Any:
        """Return up to `samples` samples as the model gets them. They do not count as visited."""
        indices = torch.arange(min(samples, len(self.source)))
        batch = move(self.source.batch(indices), self._to)
        return augmented(self._augment, batch, lambda: Draws(self._visits.seed, 0, indices.to(self._to)))

    def indices(self, batch: Batch) -> torch.Tensor:
        """Return the indices of a batch's samples, on device `at`."""
        epoch, order = self._order
        if epoch != batch.epoch:
            order = self._visits(batch.epoch).to(self._at)
            self._order = (batch.epoch, order)
        return order[batch.start : batch.stop]

    def read(self, batch: Batch, indices: torch.Tensor) -> Any:
        """Return the data set's batch for `indices`."""
        with self._lock:
            self._asked.append(indices)
            if len(self._asked) == AT_ONCE:
                self._tally()
        if self._drawn:
            return self.source.batch(indices, self._streams(batch, indices))
        return self.source.batch(indices)

    def visited(self) -> int:
        """Return the tally (`ddp.tally`) of all samples read so far. Another thread may be reading."""
        with self._lock:
            self._tally()
            return self._tallied % MODULUS

    def _tally(self) -> None:
        if self._asked:
            self._tallied += tally(torch.cat(self._asked).numpy(force=True))
            self._asked = []

    def finished(self, batch: Batch, read: Any, indices: torch.Tensor | None = None) -> Any:
        """Move a batch to device `to` and augment it."""
        if self._to != self._at:
            read = move(read, self._to)
        if self._augment is None:
            return read
        if self._given is not None:
            self._given[batch] = read, versions(members(read))
            if len(self._given) > MOST_GIVEN:  # of revoked batches
                del self._given[next(iter(self._given))]
        # On the device of the training, so both loaders give the same arithmetic.
        return augmented(self._augment, read, partial(self._draws, batch, indices))

    def keep_given(self) -> None:
        """Keep the data set's output for each batch, until `given` is called for it."""
        self._given = None if self._augment is None else {}

    def given(self, batch: Batch, finished: Any) -> tuple[Any, bool]:
        """Return (the data set's output for a `finished` batch, before augmentation; whether it is still that)."""
        if self._given is None:
            return finished, True
        given, before = self._given.pop(batch, (None, []))
        if given is not None and self._stream is not None:
            stream = torch.cuda.current_stream()
            every(lambda tensor: _recorded(tensor, stream), given)
        return given, versions(members(given)) == before

    def _draws(self, batch: Batch, indices: torch.Tensor | None) -> Draws:
        chosen = self.indices(batch) if indices is None else indices
        return self._streams(batch, chosen.to(self._to, non_blocking=True))

    def _streams(self, batch: Batch, indices: torch.Tensor) -> Draws:
        return Draws(self._visits.seed, batch.epoch, self._visits.distinct(batch.start, indices))

    def _staged(self, batch: Batch, indices: torch.Tensor) -> Staged:
        assert self._stream is not None
        read = every(lambda tensor: tensor.pin_memory(), self.read(batch, indices))
        with torch.cuda.device(self._to), torch.cuda.stream(self._stream):
            # Objects with their own `to` are moved in `take`: the stream memory that they use is not known.
            there = every(lambda tensor: tensor.to(self._to, non_blocking=True), read, lambda part: part)
            done = self.finished(batch, there, indices)
            return Staged(done, self._stream.record_event(), self._to)


class Staged:
    """A batch that is copied to a GPU on a separate stream."""

    def __init__(self, batch: Any, there: torch.cuda.Event, device: torch.device) -> None:
        self._batch, self._there, self._device = batch, there, device

    def take(self) -> Any:
        """Return the batch for use on the current stream."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._there)
        return every(lambda tensor: _recorded(tensor, stream), self._batch, lambda part: part.to(self._device))


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return how often each tensor was written to; 0 for tensors of inference, which do not count it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _recorded(tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
    """Mark a tensor of another stream as used by `stream` from now on, and return it."""
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor
