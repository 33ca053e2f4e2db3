"""Defines `DataRecord`: checksums of the data that a rank trains and evaluates on, to compare with its data sets.

Batches are collected before they are hashed, because a call to torch takes longer than a small batch. Knows no events and
no other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp.core.samples.spans import Batch
from ddp.core.values.frozen import finite
from ddp.data.contents import SampleHashes, compared, counts, hashes, labels, members, sample_hashes, total
from ddp.data.epoch_order import EpochOrder
from ddp.data.fingerprint import undisturbed
from ddp.data.gather import Gather, versions
from ddp.tally import MODULUS, mixed, order_tally

AT_ONCE, ROOM = 1 << 10, 1 << 22
"""Maximum number of collected batches, and of their bytes."""
WRITTEN = -1
"""A version that no tensor has, of a batch that was written to."""
_Contents = tuple[int, int, int, int] | tuple[int, int, None, None] | tuple[None, None, None, None]
_Sums = tuple[int, int, int | None, int | None, int, tuple[int, ...], int | None, int | None]
_Recorded = tuple[int, int, int | None, int | None, int, tuple[int, ...], int | None, int | None, float | None]


class DataRecord:
    """Checksums of the samples that a rank trains between two reports, for each epoch, and of those that it evaluates."""

    def __init__(self, training: Gather, test: Gather, order: EpochOrder) -> None:
        """Hash both data sets. `order` is the order of the training set."""
        self._gather, self._order = training, order
        with undisturbed():
            known, tested = sample_hashes(training.source), sample_hashes(test.source)
        self.content = compared(known, tested, order.shuffled)
        """Summary of both data sets."""
        self._known = known if isinstance(known, SampleHashes) else None
        self._tests_known = isinstance(tested, SampleHashes) and tested.step == 1
        self._shown: int | None = None
        self._kept: list[tuple[Batch, Sequence[Tensor], list[int]]] = []
        """(batch, its tensors from the data set, their versions). The user's code may write to the tensors."""
        self._samples = self._sample_bytes = 0
        self._losses: dict[int, float] = {}
        """Epoch -> sum of the losses that are known."""
        self._later: dict[int, list[tuple[int, Tensor]]] = {}
        """Epoch -> (samples, mean loss) of each step whose loss is on a GPU, which is read later."""
        training.keep_given()

    def show(self, batch: Any) -> None:
        """Add a batch that is evaluated."""
        if self._tests_known:
            self._shown = (self._shown or 0) + total(batch)

    def shown(self) -> int | None:
        """Return the sum of the hashes of the evaluated samples, and reset it; None if it is not known."""
        shown, self._shown = self._shown, None
        return shown if shown is None else shown % MODULUS

    @property
    def full(self) -> bool:
        """Return whether the collected batches should be hashed now."""
        return len(self._kept) >= AT_ONCE or self._samples * self._sample_bytes > ROOM

    def add(self, batch: Batch, finished: Any) -> None:
        """Add a batch that is trained next, as the data set gave it, before augmentation."""
        given, intact = self._gather.given(batch, finished)
        if self._known is None:
            batch_labels = labels(members(given))
            tensors: Sequence[Tensor] = () if batch_labels is None else (batch_labels[:0], batch_labels)
        else:
            tensors = given if type(given) is tuple else members(given)
        self._kept.append((batch, tensors, versions(tensors) if intact else [WRITTEN]))
        self._samples += batch.samples
        if not self._sample_bytes:
            self._sample_bytes = sum(tensor.nbytes for tensor in tensors) // batch.samples + 1

    def add_loss(self, epoch: int, samples: int, loss: Tensor | None) -> None:
        """Add the mean loss of a step."""
        if loss is None:
            return
        if loss.device.type == "cpu":
            self._losses[epoch] = self._losses.get(epoch, 0.0) + samples * loss.detach().item()
        else:
            self._later.setdefault(epoch, []).append((samples, loss.detach()))

    def take(self) -> Iterator[_Recorded]:
        """Yield the checksums for `Trained` of each epoch since the last call, and reset them."""
        kept, self._kept, self._samples = self._kept, [], 0
        for epoch, parts in groupby(kept, lambda part: part[0].epoch):
            batches, given, before = zip(*parts, strict=True)
            if all(versions(tensors) == noted for tensors, noted in zip(given, before, strict=True)):
                joined = _joined(given)
                rows = [] if self._known is None else [hashes(tensors) for tensors in joined]
                counted = [each for tensors in joined if (each := labels(tensors)) is not None]
                yield *self.sums(epoch, batches, rows, counted), self._loss_sum(epoch)
            else:  # the user's augmentation or loss has written to its inputs
                yield *self.sums(epoch, batches, ()), self._loss_sum(epoch)

    def _loss_sum(self, epoch: int) -> float | None:
        """Return the sum of the loss over an epoch's samples since the last call; None if it is not finite."""
        later = sum(samples * float(mean) for samples, mean in self._later.pop(epoch, ()))
        return finite(self._losses.pop(epoch, 0.0) + later)

    def sums(
        self, epoch: int, batches: Sequence[Batch], rows: Sequence[Tensor], given_labels: Sequence[Tensor] = ()
    ) -> _Sums:
        """Return the checksums for `Trained` of batches of an epoch. `rows`: hashes of the samples that the data set gave
        for them; empty if unknown."""
        positions = _positions(batches)
        indices: NDArray[np.int64] = self._order(epoch).numpy()[positions]
        contents = self._contents(torch.cat(list(rows)), positions, indices) if rows else (None, None, None, None)
        content, wanted, placed, due = contents
        labelled = counts(given_labels, len(indices))
        return epoch, len(indices), content, wanted, order_tally(positions, indices), labelled, placed, due

    def hashes(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the hashes of samples as the data set gave them; None if the data set itself has no hashes to compare
        with."""
        return None if self._known is None else hashes(tensors)

    def _contents(self, rows: Tensor, positions: NDArray[np.int64], indices: NDArray[np.int64]) -> _Contents:
        """Return (sum of the hashes of the given samples, sum of the data set's hashes at `indices`), and the same two sums
        with each hash multiplied by a number that depends on its position."""
        known = self._known
        assert known is not None
        if known.step > 1:
            chosen = known.chosen(indices)
            rows, indices = rows[torch.from_numpy(chosen).to(rows.device)], indices[chosen]
            positions = positions[chosen]
        given, due, places = rows.numpy(force=True), known.of(indices), mixed(positions).view(np.int64)
        if len(given) != len(due):  # the data set gave another number of samples
            return int(given.sum()) % MODULUS, int(due.sum()) % MODULUS, None, None
        sums = (int(values.sum()) % MODULUS for values in (given, due, given * places, due * places))
        first, second, third, fourth = sums
        return first, second, third, fourth


def _joined(given: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
    """Concatenate batches whose tensors have the same form; return others unchanged."""
    try:
        return [[torch.cat(column) for column in zip(*given, strict=True)]]
    except (RuntimeError, ValueError):
        return given


def _positions(batches: Sequence[Batch]) -> NDArray[np.int64]:
    """Return the positions of batches in their epoch, concatenated."""
    spans = np.array([(batch.start, batch.stop - batch.start) for batch in batches])
    starts, sizes = spans[:, 0], spans[:, 1]
    positions: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    return positions
