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
"""Default number of characters in a piece, as in the published set-ups."""


class Pieces(TensorSource):
    """Pieces of a text: tokens [n, length + 1], in the smallest integer type that holds them. Batches are int64."""

    repeatable = True

    def __init__(self, tokens: Tensor) -> None:
        super().__init__(tokens)

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return the pieces at `indices` (int64, [n]): tokens, int64 [n, length], and the tokens shifted by one character,
        int64 [n, length]."""
        (tokens,) = super().batch(indices)
        whole = tokens.to(torch.int64)
        return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()

    def to(self, device: torch.device) -> Pieces:
        return Pieces(self.tensors[0].to(device))


def pieces(tokens: NDArray[np.integer], seq_len: int, where: str) -> tuple[Pieces, Pieces]:
    """Return (train, eval): the first nine tenths and the last tenth of a text, in pieces of `seq_len` tokens that do not
    overlap.

    Characters at the end of a part that fill no piece are not used. Raise ValueError, naming `where`, for a text that is
    too short for one piece in each part."""
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
    """Cut tokens into consecutive pieces of `seq_len`. There must be more than `seq_len` tokens."""
    count = (len(tokens) - 1) // seq_len
    windows = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)[::seq_len]
    return Pieces(torch.from_numpy(windows[:count].copy()))


def encode(text: str, vocabulary: str, where: str) -> NDArray[np.integer]:
    """Return the index of each character in `vocabulary`, shape [characters], in the smallest integer type.

    Raise ValueError, naming `where`, for a character that is not in the vocabulary."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    known = np.frombuffer(vocabulary.encode("utf-32-le"), dtype="<u4")
    order = np.argsort(known)
    tokens = order[np.minimum(np.searchsorted(known, codes, sorter=order), len(known) - 1)]
    wrong = np.flatnonzero(known[tokens] != codes)
    if len(wrong):
        raise ValueError(f"{where}: character {text[wrong[0]]!r} at {wrong[0]} is not in the vocabulary")
    return tokens.astype(np.uint8 if len(known) <= 256 else np.int32)


def generated(vocabulary: str, load: Callable[[int], tuple[Pieces, Pieces]], options: DataOptions) -> DataSet:
    """Return the data set of a generated text, of which only `seq_len` can be chosen."""
    length = options.seq_len or SEQ_LEN
    return DataSet((length,), len(vocabulary), lambda: load(length))
