"""Text as samples: characters numbered by a vocabulary, cut into pieces. Knows no file."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ddp.data import TensorSource

SEQ_LEN = 128
"""Characters of a piece where nothing else is said, as the published set-ups have it."""
HELD_OUT = 0.1
"""Share of the text, at its end, that is evaluated on."""


def pieces(text: str, vocabulary: str, seq_len: int, where: str) -> tuple[TensorSource, TensorSource]:
    """(train, eval): the first nine tenths of `text` and the rest, in pieces of `seq_len` characters that do not overlap.

    A sample is the tokens of a piece, int64 [seq_len], and those one character on. What is left at the end of a part and
    fills no piece is not used. ValueError for a text with characters outside `vocabulary`, or too short for a piece in each
    part; `where` is what it calls the text.
    """
    tokens = encode(text, vocabulary, where)
    cut = len(tokens) - round(len(tokens) * HELD_OUT)
    shorter = min(cut, len(tokens) - cut)
    if shorter <= seq_len:
        raise ValueError(
            f"{where}: {len(text)} characters are too few for pieces of {seq_len} in both nine tenths and one tenth of it; "
            f"give {round(seq_len / HELD_OUT) + 11} or more, or data.seq_len={max(shorter - 1, 1)} or less"
        )
    return _source(tokens[:cut], seq_len), _source(tokens[cut:], seq_len)


def _source(tokens: NDArray[np.int64], seq_len: int) -> TensorSource:
    count = (len(tokens) - 1) // seq_len
    inputs, following = (tokens[start : start + count * seq_len].reshape(count, seq_len) for start in (0, 1))
    return TensorSource(torch.from_numpy(inputs.copy()), torch.from_numpy(following.copy()))


def encode(text: str, vocabulary: str, where: str) -> NDArray[np.int64]:
    """The place of each character in `vocabulary`, int64 [characters]. ValueError, naming `where`, for one outside."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    known = np.frombuffer(vocabulary.encode("utf-32-le"), dtype="<u4")
    order = np.argsort(known)
    places = np.minimum(np.searchsorted(known, codes, sorter=order), len(known) - 1)
    tokens = order[places]
    wrong = np.flatnonzero(known[tokens] != codes)
    if len(wrong):
        raise ValueError(f"{where}: character {text[wrong[0]]!r} at {wrong[0]} is not in the vocabulary")
    return tokens.astype(np.int64, copy=False)
