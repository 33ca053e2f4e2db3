"""Parses SLURM's short forms: `n[1-3,07]` for host names, `2(x3),1` for the number of tasks on each host."""

from __future__ import annotations

import re
from itertools import product

MOST = 65_536
"""Maximum number of hosts in a list."""
_PART = re.compile(r"\[([^\]]*)\]")
_RUN = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


def hosts(text: str) -> tuple[str, ...]:
    """Return the host names of a list such as `n[1-2,5],login`, in order. Raises ValueError."""
    names = tuple(name for word in _words(text) for name in _expanded(word, text))
    if not names or not all(names):
        raise ValueError(f"{text!r} is no list of hosts")
    return names


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Return the number of tasks on each host, from a list such as `2(x3),1`. Raises ValueError."""
    counts: list[int] = []
    for word in text.split(","):
        match = _RUN.fullmatch(word.strip())
        if match is None or int(match[2] or 1) > MOST:
            raise ValueError(f"{text!r} is no list of tasks on each host, such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _words(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    return re.split(r",(?![^\[]*\])", text.strip())


def _expanded(word: str, text: str) -> list[str]:
    """Return the names that one word of a list stands for."""
    pieces = _PART.split(word)  # text, range, text, range, ..., text
    if any(sign in piece for piece in pieces[::2] for sign in "[]"):
        raise ValueError(f"{text!r} is no list of hosts: its brackets do not close")
    choices = [[piece] if place % 2 == 0 else _numbers(piece, text) for place, piece in enumerate(pieces)]
    size = 1
    for choice in choices:
        size *= len(choice)
    if size > MOST:
        raise ValueError(f"{text!r} is a list of {size} hosts, {MOST} are the most")
    return ["".join(parts) for parts in product(*choices)]


def _numbers(piece: str, text: str) -> list[str]:
    """Return the numbers of `1-3,07`, with their leading zeros."""
    numbers: list[str] = []
    for span in piece.split(","):
        first, _, last = span.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(last or first) >= int(first)):
            raise ValueError(f"{text!r} is no list of hosts: {span!r} is no range of numbers")
        if int(last or first) - int(first) >= MOST:
            raise ValueError(f"{text!r} has more than {MOST} hosts")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return numbers
