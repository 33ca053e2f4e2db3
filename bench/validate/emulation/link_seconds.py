"""Seconds that a collective needs over emulated links. Shares no code with the engine. Pure.

A round lasts as long as its slowest message. A shared link carries the messages of a round one after the other. Of n
messages at once, the one that is latest by jitter counts, and the one that is lost most often. A message that is sent
again is lost with the same probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from math import ceil, floor
from typing import NamedTuple

from bench.validate.emulation.link_words import WrittenLink, WrittenLinks

REPEATS = 64
"""More often no message is lost: its chance is at most 1 in 2."""
ROUNDED = 1e-9
"""Rounding of an expected number of losses."""
Pairs = list[tuple[int, int]]


class Needed(NamedTuple):
    """Seconds of a collective: at least, at most, and the mean of a random part that it surely has, with a variance that
    bounds how far below their mean sums are (of losses by Chernoff's and Hoeffding's bounds)."""

    least: float
    most: float
    mean: float
    variance: float

    @staticmethod
    def all_reduce(links: WrittenLinks, ranks: tuple[int, ...], size: int, part: float = 1.0) -> Needed:
        """Return those of an all-reduce of `size` bytes; `part` 0.5: of a half of one."""
        return _all_reduce(links, ranks, size, part)


@lru_cache(maxsize=4096)
def _all_reduce(links: WrittenLinks, ranks: tuple[int, ...], size: int, part: float) -> Needed:
    rounds = list(_rounds(links, ranks))
    needed = [
        [_messages(link, times * part, width, share * size) for link, width in users.items()]
        for times, share, users in rounds
        if users
    ]
    slowest = [max(each, key=lambda messages: messages.mean) for each in needed]
    return Needed(
        sum(max(messages.least for messages in each) for each in needed),
        sum(max(messages.most for messages in each) for each in needed),
        sum(messages.mean for messages in slowest),
        sum(messages.variance for messages in slowest),
    )


def _messages(link: WrittenLink, rounds: float, width: int, size: float) -> Needed:
    """Return the seconds of `rounds` rounds of `width` messages of `size` bytes at once over a link.

    Messages are sent again as often as expected, rounded up or down at random.
    """
    moved = rounds * (link.latency + size * (width if link.shared else 1) / link.rate)
    lost = rounds * sum(1 - (1 - link.loss**again) ** width for again in range(1, REPEATS))
    late, spread = (width - 1) / (width + 1), 4 * width / ((width + 1) ** 2 * (width + 2))
    return Needed(
        moved - rounds * link.jitter + max(floor(lost - ROUNDED), 0) * link.again,
        moved + rounds * link.jitter + ceil(lost + (ROUNDED if lost else 0.0)) * link.again,
        moved + rounds * late * link.jitter + lost * link.again,
        rounds * spread * link.jitter**2 + min(lost % 1, 0.25) * link.again**2,
    )


@lru_cache(maxsize=256)
def _rounds(links: WrittenLinks, ranks: tuple[int, ...]) -> tuple[tuple[int, float, Counter[WrittenLink]], ...]:
    """Return (number of rounds, part of the bytes in each message, messages at once by link), as published (Thakur et al.
    2005)."""
    uses = []
    for times, share, pairs in _exchanges(links.algorithm, len(ranks)):
        over = (links.between(ranks[a], ranks[b]) for a, b in pairs)
        uses.append((times, share, Counter(link for link in over if link is not None)))
    return tuple(uses)


def _exchanges(algorithm: str, count: int) -> Iterator[tuple[int, float, Pairs]]:
    """Yield (number of rounds, part of the bytes, pairs): a ring passes an n-th on in each of 2(n-1) rounds, a tree all of
    them up and down, halving and doubling a half, a quarter, ... of them."""
    if count < 2:
        return
    if algorithm == "ring":
        yield 2 * (count - 1), 1 / count, [(rank, (rank + 1) % count) for rank in range(count)]
        return
    whole, distance = 1 << (count.bit_length() - 1), 1
    if algorithm == "tree":
        while distance < count:
            yield 2, 1.0, [(rank, rank + distance) for rank in range(0, count - distance, 2 * distance)]
            distance *= 2
        return
    if count > whole:  # the others give all that they have to a partner, which returns the result
        yield 2, 1.0, [(rank, rank - whole) for rank in range(whole, count)]
    while distance < whole:
        yield 2, distance / whole, [(rank, rank ^ distance) for rank in range(whole)]
        distance *= 2
