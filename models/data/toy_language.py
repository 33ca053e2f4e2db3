"""`toy_language`: sentences without meaning, of 64 words of two or three syllables; some words may follow each word.

The words are drawn once, and for each word the 16 words that may follow it, with equal probability. The texts for training
and test are two random walks. So the best possible cross-entropy is known: ln(16) nats per word, divided by its letters and
space. All random numbers are the raw output of PCG64 (NEP 19), so the content is the same on every machine.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.random import PCG64
from numpy.typing import NDArray

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.options import DataOptions
from bench.models.data.text import Pieces, cut_up, encode, generated
from ddp.data import derive

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
VOCABULARY = " " + "".join(sorted(CONSONANTS + VOWELS))
"""The space and 19 letters: 20 characters."""
WORDS, FOLLOWERS = 64, 16
CHARACTERS = (300_000, 50_000)
"""Characters for training and for the test."""
SEED = 20
NAME = "data set toy_language"


def _numbers(purpose: str, count: int, below: int) -> list[int]:
    """Draw `count` numbers from [0, below), `below` a power of two or far below 2**64."""
    drawn: list[int] = (PCG64(derive(SEED, purpose)).random_raw(count) % np.uint64(below)).tolist()
    return drawn


def words() -> list[str]:
    """Return the words, all different, of two or three syllables."""
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    draws = iter(_numbers("words", 8 * WORDS, len(syllables)))
    words: dict[str, None] = {}
    while len(words) < WORDS:
        words["".join(syllables[next(draws)] for _ in range(2 + len(words) % 2))] = None
    return list(words)


def followers() -> list[list[int]]:
    """Return for each word the indices of the words that may follow it."""
    return [np.argsort(_numbers(f"after {word}", WORDS, 2**62)).tolist()[:FOLLOWERS] for word in range(WORDS)]


def text(purpose: str, characters: int) -> str:
    """Return the first `characters` characters of a random walk over the words; `purpose` is the key of its random
    numbers."""
    spelt, after, word, parts = words(), followers(), 0, []
    for choice in _numbers(purpose, characters // 4, FOLLOWERS):
        word = after[word][choice]
        parts.append(spelt[word])
    return " ".join(parts)[:characters]


@cache
def _tokens(purpose: str, characters: int) -> NDArray[np.integer]:
    return encode(text(purpose, characters), VOCABULARY, NAME)


def _load(length: int) -> tuple[Pieces, Pieces]:
    if length >= min(CHARACTERS):
        raise ValueError(f"data.seq_len={length}: {NAME} has {min(CHARACTERS)} characters in its test")
    train, test = (cut_up(_tokens(*part), length) for part in zip(("train", "eval"), CHARACTERS, strict=True))
    return train, test


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    return generated(VOCABULARY, _load, options)


ORIGIN = Origin(_describe)
