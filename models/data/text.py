"""Text as samples: characters numbered by a vocabulary, cut into pieces. Knows no file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.models.data.dataset import DataSet
from bench.models.data.options import DataOptions
from ddp.data import TensorSource

SEQ_LEN = 128
"""Characters of a piece by default, as the published set-ups have it."""


class Pieces(TensorSource):
    """Pieces of a text: tokens [n, length + 1], of the smallest type that holds them; a batch has them as int64."""

    repeatable = True

    def __init__(self, tokens: Tensor) -> None:
        super().__init__(tokens)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return the pieces at `indices` (int64, [n]): tokens, int64 [n, length], and those one character on, as many."""
        (tokens,) = super().batch(indices)
        whole = tokens.to(torch.int64)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def to(self, device: torch.device) -> Pieces:
        return Pieces(self.tensors[0].to(device))


def pieces(tokens: NDArray[np.integer], seq_len: int, where: str) -> tuple[Pieces, Pieces]:
    """Return (train, eval): nine tenths of a text and the rest, in pieces of `seq_len` tokens that do not overlap.

    What is left at the end of a part and fills no piece is not used. Raise ValueError for a text, called `where`, that is
    too short for a piece in each part."""
    cut = len(tokens) * 9 // 10
    shorter = min(cut, len(tokens) - cut)
    if shorter <= seq_len:
        fits = f", or data.seq_len={shorter - 1} or less" if shorter > 1 else ""
        raise ValueError(
            f"{where}: {len(tokens)} characters are too few for pieces of {seq_len} in a tenth of it, which is held out; "
            f"give it {10 * seq_len + 1} or more{fits}"
        )
    return cut_up(tokens[:cut], seq_len), cut_up(tokens[cut:], seq_len)


def cut_up(tokens: NDArray[np.integer], seq_len: int) -> Pieces:
    """Return the pieces of `seq_len` tokens, one after the other, that a text longer than one of them holds."""
    count = (len(tokens) - 1) // seq_len
    windows = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[::seq_len]
    return Pieces(torch.from_numpy(windows[:count].copy()))


def encode(text: str, vocabulary: str, where: str) -> NDArray[np.integer]:
    """Return the place of each character in `vocabulary`, in the smallest type that holds them all, [characters].

    Raise ValueError, naming `where`, for a character outside."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    known = np.frombuffer(vocabulary.encode("utf-32-le"), dtype="<u4")
    order = np.argsort(known)
    tokens = order[np.minimum(np.searchsorted(known, codes, sorter=order), len(known) - 1)]
    wrong = np.flatnonzero(known[tokens] != codes)
    if len(wrong):
        raise ValueError(f"{where}: character {text[wrong[0]]!r} at {wrong[0]} is not in the vocabulary")
    return tokens.astype(np.uint8 if len(known) <= 256 else np.int32)


def generated(vocabulary: str, load: Callable[[int], tuple[Pieces, Pieces]], options: DataOptions) -> DataSet:
    """Return the data set of a text that no option but its length changes."""
    length = options.seq_len or SEQ_LEN
    return DataSet((length,), len(vocabulary), lambda: load(length))
