"""Finds the nearest valid name for a misspelt one. Knows words, not their meaning."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the member of `known` that `word` was probably meant to be; None if there is none."""
    names = sorted(known)
    close = [name for name in names if sorted(name) == sorted(word)]  # swapped letters, the most common mistake
    close = close or get_close_matches(word, names, n=1, cutoff=0.6)
    if not close:  # users often write only the last part of a dotted key: `epochs` for `train.epochs`
        close = [name for name in names if name.rpartition(".")[2] == word.rpartition(".")[2]]
    return close[0] if close else None


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """Return one line that says that `word` is no `kind`, and what to write instead."""
    names = sorted(known)
    best = nearest(word, names)
    remedy = f"did you mean {best!r}?" if best else f"choose one of: {', '.join(names) or '(there are none)'}"
    return f"unknown {kind} {word!r}; {remedy}"
