"""`DataRecord`: what a rank trains and evaluates on, summed up for the record, beside what its data sets hold.

What the model was shown is kept until there is enough of it: a call to torch costs more than a small batch does. Knows no
events, and nothing of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp.core.spans import Batch
from ddp.data.contents import SampleHashes, compared, counts, hashes, labels, members, sample_hashes, total
from ddp.data.epoch_order import EpochOrder
from ddp.data.fingerprint import undisturbed
from ddp.data.gather import Gather
from ddp.tally import MODULUS, mixed, order_tally

AT_ONCE, ROOM = 1 << 10, 1 << 22
"""Batches that are kept, and bytes."""
_Contents = tuple[int, int, int, int] | tuple[int, int, None, None] | tuple[None, None, None, None]
_Sums = tuple[int, int, int | None, int | None, int, tuple[int, ...], int | None, int | None]


class DataRecord:
    """Sums over what a rank trains between two reports, of one epoch each, and over what it evaluates on."""

    def __init__(self, training: Gather, test: Gather, order: EpochOrder) -> None:
        """Read both data sets; `order` is that of the training set."""
        self._gather, self._order = training, order
        with undisturbed():
            known, tested = sample_hashes(training.source), sample_hashes(test.source)
        self.content = compared(known, tested, order.shuffled)
        """What both sets hold."""
        self._known = known if isinstance(known, SampleHashes) else None
        self._tests_known = isinstance(tested, SampleHashes) and tested.step == 1
        self._shown: int | None = None
        self._kept: list[tuple[Batch, Sequence[Tensor], list[int]]] = []
        """Batches, what was given, and the versions of its tensors: the user's loss may write into them."""
        self._samples = self._sample_bytes = 0
        training.keep_given()

    def show(self, batch: Any) -> None:
        """Add a batch that is evaluated."""
        if self._tests_known:
            self._shown = (self._shown or 0) + total(batch)

    def shown(self) -> int | None:
        """Return the sum of the hashes of what was evaluated, and begin anew; None: not known."""
        shown, self._shown = self._shown, None
        return shown if shown is None else shown % MODULUS

    @property
    def full(self) -> bool:
        """Whether it is time to sum up."""
        return len(self._kept) >= AT_ONCE or self._samples * self._sample_bytes > ROOM

    def add(self, batch: Batch, finished: Any) -> None:
        """Add a batch that is trained next: what the data set gave for it, not augmented."""
        given = self._gather.given(batch, finished)
        if self._known is None:
            batch_labels = labels(members(given))
            tensors: Sequence[Tensor] = () if batch_labels is None else (batch_labels[:0], batch_labels)
        else:
            tensors = given if type(given) is tuple else members(given)
        self._kept.append((batch, tensors, _versions(tensors)))
        self._samples += batch.samples
        if not self._sample_bytes:
            self._sample_bytes = sum(tensor.nbytes for tensor in tensors) // batch.samples + 1

    def take(self) -> Iterator[_Sums]:
        """Yield what `Trained` tells of each epoch that was added since, and begin anew."""
        kept, self._kept, self._samples = self._kept, [], 0
        for epoch, parts in groupby(kept, lambda part: part[0].epoch):
            batches, given, before = zip(*parts, strict=True)
            if all(_versions(tensors) == versions for tensors, versions in zip(given, before, strict=True)):
                joined = _joined(given)
                rows = [] if self._known is None else [hashes(tensors) for tensors in joined]
                counted = [each for tensors in joined if (each := labels(tensors)) is not None]
                yield self.sums(epoch, batches, rows, counted)
            else:  # the user's loss wrote into what it was given
                yield self.sums(epoch, batches, ())

    def sums(
        self, epoch: int, batches: Sequence[Batch], rows: Sequence[Tensor], given_labels: Sequence[Tensor] = ()
    ) -> _Sums:
        """Return what `Trained` tells of batches of an epoch: `rows` are the hashes of the samples that were given for them,
        none where they are not known."""
        positions = _positions(batches)
        indices: NDArray[np.int64] = self._order(epoch).numpy()[positions]
        contents = self._contents(torch.cat(list(rows)), positions, indices) if rows else (None, None, None, None)
        content, wanted, placed, due = contents
        labelled = counts(given_labels, len(indices))
        return epoch, len(indices), content, wanted, order_tally(positions, indices), labelled, placed, due

    def hashes(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the hashes of samples as the data set gives them; None where it has none to hold them against."""
        return None if self._known is None else hashes(tensors)

    def _contents(self, rows: Tensor, positions: NDArray[np.int64], indices: NDArray[np.int64]) -> _Contents:
        """Return the sum of the hashes of what was given, the same of what the data set has at `indices`; and both again,
        each hash times a number of its position."""
        known = self._known
        assert known is not None
        if known.step > 1:
            chosen = known.chosen(indices)
            rows, indices = rows[torch.from_numpy(chosen).to(rows.device)], indices[chosen]
            positions = positions[chosen]
        given, due, places = rows.numpy(force=True), known.of(indices), mixed(positions).view(np.int64)
        if len(given) != len(due):  # samples without a position of their own
            return int(given.sum()) % MODULUS, int(due.sum()) % MODULUS, None, None
        sums = (int(values.sum()) % MODULUS for values in (given, due, given * places, due * places))
        first, second, third, fourth = sums
        return first, second, third, fourth


def _joined(given: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
    """Return batches as one, where their tensors are of one form."""
    try:
        return [[torch.cat(column) for column in zip(*given, strict=True)]]
    except (RuntimeError, ValueError):
        return given


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _positions(batches: Sequence[Batch]) -> NDArray[np.int64]:
    """Return the positions of batches in their epoch, one after the other."""
    spans = np.array([(batch.start, batch.stop - batch.start) for batch in batches])
    starts, sizes = spans[:, 0], spans[:, 1]
    positions: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    return positions
