"""Hashes samples: each sample of a batch, and all samples of a data set.

A hash covers all members of a sample, bit for bit. It is the sum of 64-bit words times odd weights (a multilinear hash:
Carter and Wegman 1979), then mixed. A change in one word always changes it, a change in several words nearly surely. It is
the same on every device. Knows no order, no rank and no loader.
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

from ddp.core.messages.event_parts import DataContent, SetContent
from ddp.data.draws import mix
from ddp.data.source import TensorSource, every
from ddp.tally import MODULUS, mixed

MOST_WORDS = 1 << 12
"""Maximum number of words hashed per member of a sample. Longer members are sampled at equal distances."""
WHOLE = 1 << 25
"""Data sets up to this number of words are hashed completely, of larger ones a random part. Takes about a fifth of a
second."""
AT_ONCE = 1 << 19
"""Number of words hashed in one call."""
PROBED = 8
"""Number of samples that are read both together and one by one. Only a data set that gives the same both times is
hashed."""
NAMED = 5
"""Maximum number of pairs of equal samples that are reported."""
CLASSES = 64
"""Labels are counted if there are no more classes than this."""


def members(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch, from left to right."""
    tensors: list[Tensor] = []

    def add(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    every(add, batch)
    return tensors


def hashes(tensors: Sequence[Tensor]) -> Tensor:
    """Return a hash for each sample, int64 [n], on the tensors' device. Each tensor has one row for each sample.

    Raise RuntimeError for tensors without rows, or whose bits torch cannot access."""
    sums = [_sums(tensor, place) for place, tensor in enumerate(tensors)]
    return mix(sum(sums[1:], sums[0] + 1))


def total(batch: Any) -> int:
    """Return the sum of the hashes of a batch's samples."""
    return int(hashes(members(batch)).sum())


def labels(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the labels of a batch, int64 [n]: its last member, if it has several and the last one is int64. None
    otherwise."""
    last = tensors[-1] if len(tensors) > 1 else torch.empty(0)
    known = last.dtype == torch.int64 and last.dim() == 1 and last.layout is torch.strided
    return last if known else None


def counts(given: Sequence[Tensor], samples: int) -> tuple[int, ...]:
    """Return the number of samples with each label. () if some of the `samples` have no label, or if there are too many
    classes."""
    joined = torch.cat(list(given)) if given else torch.empty(0)
    if not samples or len(joined) != samples or not 0 <= int(joined.min()) <= int(joined.max()) < CLASSES:
        return ()
    return tuple(torch.bincount(joined).tolist())


class SampleHashes:
    """The hashes of a data set, by the indices of the hashed samples."""

    def __init__(self, source: TensorSource, step: int) -> None:
        """Read the samples of `source` whose mixed index is a multiple of `step`."""
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
        """Hashes of each sample, and of its first member alone, shape [hashed samples]."""

    def chosen(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these samples are hashed."""
        return np.ones(len(indices), bool) if self.step == 1 else mixed(indices) % np.uint64(self.step) == 0

    def of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the hashes of these samples, shape [n]. All of them must be hashed ones."""
        values: NDArray[np.int64] = self.values[indices if self.step == 1 else np.searchsorted(self.indices, indices)]
        return values

    def content(self) -> SetContent:
        """Return the summary of the data set for the record."""
        repeated = len(self.inputs) - len(np.unique(self.inputs))
        total = int(self.values.sum()) % MODULUS
        return SetContent(self.size, len(self.values), total, repeated, counts(self._labels, self.size))


def sample_hashes(source: Any) -> SampleHashes | SetContent:
    """Return the hashes of a data set in memory that gives each sample independently of others. For a data set whose
    samples may differ from one reading to the next, or depend on the other samples of a batch, return its size only."""
    if not repeatable(source):
        return SetContent(len(source))
    drawn = np.arange(PROBED) * len(source) // PROBED
    try:
        together = torch.cat([hashes(tensors) for tensors in _read(source, drawn)])
        alone = torch.cat([hashes(t) for index in drawn for t in _read(source, np.array([index]))])
        if not torch.equal(together, alone):
            return SetContent(len(source))
        words = sum(min(_words(t), MOST_WORDS) for t in next(_read(source, drawn[:1])))
        return SampleHashes(source, max(-(-words * len(source) // WHOLE), 1))
    except Exception:  # the user's code may raise anything: it will raise again when the sample is trained
        return SetContent(len(source))


def repeatable(source: Any) -> bool:
    """Tell whether the class that defines `batch` also declares itself `repeatable`."""
    owner = next((cls for cls in type(source).__mro__ if "batch" in vars(cls)), object)
    return bool(vars(owner).get("repeatable")) and isinstance(source, TensorSource)


def compared(training: SampleHashes | SetContent, test: SampleHashes | SetContent, shuffled: bool) -> DataContent:
    """Return the summary of both data sets, with the samples that they share."""
    pairs: list[tuple[int, int]] = []
    if isinstance(training, SampleHashes) and isinstance(test, SampleHashes):
        _, tested, trained = np.intersect1d(test.inputs, training.inputs, return_indices=True)
        pairs = sorted(zip(test.indices[tested].tolist(), training.indices[trained].tolist(), strict=True))
    first, second = (known.content() if isinstance(known, SampleHashes) else known for known in (training, test))
    return DataContent(first, second, len(pairs), tuple(pairs[:NAMED]), shuffled)


def _read(source: TensorSource, indices: NDArray[np.int64]) -> Iterator[list[Tensor]]:
    """Yield the samples at `indices` as the data set gives them, several at once."""
    start, rows = 0, 1
    while start < len(indices):
        tensors = members(source.batch(torch.from_numpy(indices[start : start + rows])))
        yield tensors
        start += rows
        rows = max(AT_ONCE // max(sum(map(_words, tensors)), 1), 1)


def _words(tensor: Tensor) -> int:
    """Return the number of words in a row."""
    return max(tensor.nbytes // (8 * max(len(tensor), 1)), 1)


def _sums(tensor: Tensor, place: int) -> Tensor:
    """Return the weighted sum of each row's words, int64 [n]. `place`: index of the tensor in its batch."""
    words = _as_words(tensor.detach().reshape(len(tensor), -1).contiguous())
    if words.shape[1] == 1:
        return words[:, 0] * _weights(1, place, words.device)
    apart = -(-words.shape[1] // MOST_WORDS) | 1  # odd, so that it samples all columns of an image
    words = words[:, ::apart]
    return (words * _weights(words.shape[1], place, words.device)).sum(1)


def _as_words(rows: Tensor) -> Tensor:
    """Return the bits of rows as int64 [n, words]; if the row length is no multiple of 8 bytes, one word for each byte."""
    if rows.shape[1] * rows.element_size() % 8:
        return rows.view(torch.uint8).to(torch.int64)
    return (rows.clone() if rows.storage_offset() * rows.element_size() % 8 else rows).view(torch.int64)


@lru_cache(maxsize=64)
def _weights(count: int, place: int, device: torch.device) -> Tensor:
    first = place << 40
    return torch.from_numpy((mixed(np.arange(first, first + count)) | np.uint64(1)).view(np.int64)).to(device)


def value_sum(batch: Any) -> float:
    """Return the sum of all values in a batch, with real and imaginary parts of complex ones; NaN if torch cannot sum
    them."""
    sums: list[float] = []

    def add(tensor: Tensor) -> Tensor:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        try:
            sums.append(float(real.sum(dtype=torch.float64)))
        except NotImplementedError:  # nested tensors, which a user's batch may have
            sums.append(math.nan)
        return tensor

    every(add, batch)
    return sum(sums)
