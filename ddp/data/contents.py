"""What samples hold, as numbers: a hash of each sample of a batch, and those of a whole data set.

A hash is of all members of a sample, bit for bit: words of 64 bits times odd weights, summed (a multilinear hash: Carter and
Wegman 1979), and mixed. One word that differs changes it, several do nearly surely. The same on every device.
Knows no order, no rank and no loader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp.core.event_parts import DataContent, SetContent
from ddp.data.draws import mix
from ddp.data.source import TensorSource, every
from ddp.tally import MODULUS, mixed

MOST_WORDS = 1 << 12
"""Of a member of a sample: of longer ones words at even distances."""
WHOLE = 1 << 25
"""Words of a data set up to which every sample is looked at, of larger ones a drawn part. About a fifth of a second."""
AT_ONCE = 1 << 19
"""Words that are hashed at once."""
PROBED = 8
"""Samples that are read one by one, too: a set is known where that gives the same."""
NAMED = 5
"""Pairs of equal samples that are named."""
CLASSES = 64
"""Labels are counted where there are no more."""


def members(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch, from left to right."""
    tensors: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    every(add, batch)
    return tensors


def hashes(tensors: Sequence[Tensor]) -> Tensor:
    """Return a number for each sample, int64 [n], on their device, of tensors with a row for each.

    Raise RuntimeError for tensors without rows, or whose bits torch cannot show."""
    sums = [_sums(tensor, place) for place, tensor in enumerate(tensors)]
    return mix(sum(sums[1:], sums[0] + 1))


def total(batch: Any) -> int:
    """Return the sum of the hashes of the samples of a batch, of any size."""
    return int(hashes(members(batch)).sum())


def labels(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the labels of a batch, int64 [n]: its last member, where there are several and it is whole numbers."""
    last = tensors[-1] if len(tensors) > 1 else torch.empty(0)
    known = last.dtype == torch.int64 and last.dim() == 1 and last.layout is torch.strided
    return last if known else None


def counts(given: Sequence[Tensor], samples: int) -> tuple[int, ...]:
    """Return how many of `samples` samples have each label; () if some have none, or they are not of few classes."""
    joined = torch.cat(list(given)) if given else torch.empty(0)
    if not samples or len(joined) != samples or not 0 <= int(joined.min()) <= int(joined.max()) < CLASSES:
        return ()
    return tuple(torch.bincount(joined).tolist())


class SampleHashes:
    """Those of a data set, by the indices of the samples that are looked at."""

    def __init__(self, source: TensorSource, step: int) -> None:
        """Read of a `source` every sample whose mixed index is a multiple of `step`."""
        self.size, self.step = len(source), step
        self.indices = np.arange(self.size)[self.chosen(np.arange(self.size))]
        both, inputs = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        self._labels: list[Tensor] = []
        for tensors in _read(source, self.indices):
            both.append(hashes(tensors).numpy(force=True))
            inputs.append(hashes(tensors[:1]).numpy(force=True))
            if (given := labels(tensors)) is not None:
                self._labels.append(given)
        self.values, self.inputs = np.concatenate(both), np.concatenate(inputs)
        """Of each sample, and of its first member alone, shape [looked at]."""

    def chosen(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which of the samples are looked at."""
        return np.ones(len(indices), bool) if self.step == 1 else mixed(indices) % np.uint64(self.step) == 0

    def of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the hashes of samples that are looked at, shape [n]."""
        values: NDArray[np.int64] = self.values[indices if self.step == 1 else np.searchsorted(self.indices, indices)]
        return values

    def content(self) -> SetContent:
        """Return what is recorded of it."""
        repeated = len(self.inputs) - len(np.unique(self.inputs))
        total = int(self.values.sum()) % MODULUS
        return SetContent(self.size, len(self.values), total, repeated, counts(self._labels, self.size))


def sample_hashes(source: Any) -> SampleHashes | SetContent:
    """Return those of a data set that lies in memory and gives each sample for itself. Of one that may give others each
    time, or other ones beside others, return its size."""
    if not _repeatable(source):
        return SetContent(len(source))
    drawn = np.arange(PROBED) * len(source) // PROBED
    try:
        together = torch.cat([hashes(tensors) for tensors in _read(source, drawn)])
        alone = torch.cat([hashes(t) for index in drawn for t in _read(source, np.array([index]))])
        if not torch.equal(together, alone):
            return SetContent(len(source))
        words = sum(min(_words(t), MOST_WORDS) for t in next(_read(source, drawn[:1])))
        return SampleHashes(source, max(-(-words * len(source) // WHOLE), 1))
    except Exception:  # of the user's own code: it is heard where the sample is trained
        return SetContent(len(source))


def _repeatable(source: Any) -> bool:
    """Tell whether the class that says how batches are read says `repeatable`, too."""
    owner = next((cls for cls in type(source).__mro__ if "batch" in vars(cls)), object)
    return bool(vars(owner).get("repeatable")) and isinstance(source, TensorSource)


def compared(training: SampleHashes | SetContent, test: SampleHashes | SetContent, shuffled: bool) -> DataContent:
    """Return what is recorded of both sets, and which samples they share."""
    pairs: list[tuple[int, int]] = []
    if isinstance(training, SampleHashes) and isinstance(test, SampleHashes):
        _, tested, trained = np.intersect1d(test.inputs, training.inputs, return_indices=True)
        pairs = sorted(zip(test.indices[tested].tolist(), training.indices[trained].tolist(), strict=True))
    first, second = (known.content() if isinstance(known, SampleHashes) else known for known in (training, test))
    return DataContent(first, second, len(pairs), tuple(pairs[:NAMED]), shuffled)


def _read(source: TensorSource, indices: NDArray[np.int64]) -> Iterator[list[Tensor]]:
    """Yield the samples at `indices` as the data set gives them, some at once."""
    start, rows = 0, 1
    while start < len(indices):
        tensors = members(source.batch(torch.from_numpy(indices[start : start + rows])))
        yield tensors
        start += rows
        rows = max(AT_ONCE // max(sum(map(_words, tensors)), 1), 1)


def _words(tensor: Tensor) -> int:
    """Return the number of words of a row."""
    return max(tensor.nbytes // (8 * max(len(tensor), 1)), 1)


def _sums(tensor: Tensor, place: int) -> Tensor:
    """Return the weighted sum of each row's words, int64 [n]; `place` of the tensor in its batch."""
    words = _as_words(tensor.detach().reshape(len(tensor), -1).contiguous())
    if words.shape[1] == 1:
        return words[:, 0] * _weights(1, place, words.device)
    apart = -(-words.shape[1] // MOST_WORDS) | 1  # odd, so that it comes by all columns of an image
    words = words[:, ::apart]
    return (words * _weights(words.shape[1], place, words.device)).sum(1)


def _as_words(rows: Tensor) -> Tensor:
    """Return the bits of rows as numbers, int64 [n, words]; of odd lengths a word for each byte."""
    if rows.shape[1] * rows.element_size() % 8:
        return rows.view(torch.uint8).to(torch.int64)
    return (rows.clone() if rows.storage_offset() * rows.element_size() % 8 else rows).view(torch.int64)


@lru_cache(maxsize=64)
def _weights(count: int, place: int, device: torch.device) -> Tensor:
    first = place << 40
    return torch.from_numpy((mixed(np.arange(first, first + count)) | np.uint64(1)).view(np.int64)).to(device)


def value_sum(batch: Any) -> float:
    """Return the sum over all values of all tensors of a batch, complex ones' parts; not a number if torch cannot add
    them up."""
    sums: list[float] = []

    def add(tensor: Tensor) -> Tensor:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        try:
            sums.append(float(real.sum(dtype=torch.float64)))
        except NotImplementedError:  # nested ones, which a user's batch may have
            sums.append(math.nan)
        return tensor

    every(add, batch)
    return sum(sums)
