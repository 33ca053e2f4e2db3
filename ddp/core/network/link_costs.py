"""The time of a transfer over links: messages, and collectives by the alpha-beta model. Pure; for virtual and real time.

A collective is a sequence of rounds; a round ends with its slowest message. For S bytes and n ranks, a ring takes 2(n-1)
rounds of S/n bytes; halving and doubling take 2 log2(n) rounds of 2(n-1)/n S in total; a tree takes 2 log2(n) rounds of S
(Thakur et al. 2005). Snapshots move in a star, with the coordinator on rank 0's host at its centre."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ddp.core.network.links import RING, TREE, Links, RankLink

_MASK = (1 << 64) - 1
LEAST_CHANCE = 1e-12
"""Chance below which a message is not expected to be sent again."""
COLLECTIVE, TO, FROM = 0, 1, 2
"""Streams of random draws; TO and FROM are also the directions of messages, to and from the coordinator."""


class LinkRound(NamedTuple):
    """Messages that are sent at the same time: number of such rounds, part of the bytes in each message, messages by link
    rule."""

    times: float
    part: float
    messages: tuple[tuple[int, int], ...]


def collective_s(links: Links, members: tuple[int, ...], size: int, number: int | None = 0, part: float = 1.0) -> float:
    """Return the seconds of an all-reduce of `size` bytes, from the last arrival to its end. `number`: index of the
    collective, which seeds jitter and losses; None: with the least of both. `part`: 0.5 for a reduce-scatter or
    all-gather."""
    total = 0.0
    for place, (times, share, messages) in enumerate(_rounds(links, members)):
        draw = 0.0, 0.0
        if number is not None:
            draw = _uniform(links.seed, COLLECTIVE, number, place), _uniform(links.seed, COLLECTIVE, number, ~place)
        total += max(
            _delay(links.rules[rule].link, times * part, count, draw)
            + times * part * share * size / _rate(links.rules[rule].link, count)
            for rule, count in messages
        )
    return total


def meeting_s(links: Links, members: tuple[int, ...], size: int, count: float, number: int = 0) -> float:
    """Return the seconds of `count` consecutive collectives with `size` bytes in total."""
    return collective_s(links, members, size, number) + (count - 1) * collective_s(links, members, 0, number)


def used(links: Links, members: tuple[int, ...]) -> set[int]:
    """Return the indices of the rules over whose links an all-reduce goes."""
    return {rule for each in _rounds(links, members) for rule, _ in each.messages}


class Deliveries:
    """Messages between ranks and the coordinator on rank 0's host. They arrive in order per rank and direction; on a shared
    link one is transferred after the other."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._last: dict[tuple[int, int], float] = {}
        """(rank, direction) -> arrival of the last message."""
        self._free: dict[tuple[int, int], float] = {}
        """When a link is free again, by rule and direction of a shared link, else by rank and direction."""
        self._sent: Counter[tuple[int, int]] = Counter()

    def due(self, rank: int, size: int, way: int, at: float) -> float:
        """Return when a message of `size` bytes, sent at `at`, arrives; never before an earlier one of that rank."""
        number = self._sent[rank, way] = self._sent[rank, way] + 1
        seed, stream = self._links.seed, rank * 4 + way
        draw = _uniform(seed, stream, number, 0), _uniform(seed, stream, number, 1)
        rule = self._links.between(0, rank) if rank else -1
        arrival = at
        if rule >= 0:
            link = self._links.rules[rule].link
            medium = (rule, -1) if link.shared else (rank, way)
            begin = max(at, self._free.get(medium, at))
            self._free[medium] = begin + size / link.rate
            arrival = self._free[medium] + _delay(link, 1, 1, draw)
        arrival = self._last[rank, way] = max(arrival, self._last.get((rank, way), arrival))
        return arrival

    def forget(self, rank: int) -> None:
        """Forget what is in flight to and from a rank whose process has ended. What is on a shared link stays there."""
        for way in (TO, FROM):
            self._last.pop((rank, way), None)
            self._free.pop((rank, way), None)


def _delay(link: RankLink, rounds: float, width: int, draw: tuple[float, float]) -> float:
    """Return the latency, jitter and retransmissions of `rounds` rounds of `width` messages, of which the slowest
    counts."""
    spread, shift = (width - 1) / (width + 1), math.sqrt(12 * width / ((width + 1) ** 2 * (width + 2)) * rounds)
    jitter = min(max(rounds * spread + shift * (2 * draw[0] - 1), -rounds), rounds) * link.jitter_s
    struck = int(rounds * _repeats(link.loss, width) + draw[1])
    return rounds * link.latency_s + jitter + struck * link.again_s


@lru_cache(maxsize=1024)
def _repeats(loss: float, width: int) -> float:
    """Return the expected number of times that the unluckiest of `width` messages is sent again."""
    expected, chance = 0.0, loss
    while chance > LEAST_CHANCE:
        expected += 1 - (1 - chance) ** width
        chance *= loss
    return expected


def _rate(link: RankLink, messages: int) -> float:
    return link.rate / messages if link.shared else link.rate


@lru_cache(maxsize=1024)
def _rounds(links: Links, members: tuple[int, ...]) -> tuple[LinkRound, ...]:
    """Return the rounds of an all-reduce of `members` that use a link with a rule."""
    count = len(members)
    if count < 2:
        return ()
    if links.algorithm == RING:
        rounds = [_round(links, 2 * (count - 1), 1 / count, ((m, members[k - 1]) for k, m in enumerate(members)))]
    else:
        rounds = _doubling(links, members, halving=links.algorithm != TREE)
    return tuple(each for each in rounds if each.messages)


def _doubling(links: Links, members: tuple[int, ...], halving: bool) -> list[LinkRound]:
    """Return rounds at distances 1, 2, 4, ... forth and back. Ranks beyond a power of two first send all data to a partner,
    and receive the result at the end."""
    count = len(members)
    steps = (count - 1).bit_length() if not halving else count.bit_length() - 1
    whole = 1 << steps
    rounds = []
    if halving and whole < count:
        rounds.append(_round(links, 2, 1.0, ((members[k], members[k - whole]) for k in range(whole, count))))
    for step in range(steps):
        distance = 1 << step
        if halving:
            pairs = [(members[k], members[k ^ distance]) for k in range(whole)]
        else:
            ends = range(0, count - distance, 2 * distance)
            pairs = [(members[k], members[k + distance]) for k in ends]
        rounds.append(_round(links, 2, distance / whole if halving else 1.0, pairs))
    return rounds


def _round(links: Links, times: float, part: float, pairs: Iterable[tuple[int, int]]) -> LinkRound:
    last = len(links.rules) - 1
    rules = Counter(last if links.uniform else links.between(a, b) for a, b in pairs)
    return LinkRound(times, part, tuple((rule, count) for rule, count in sorted(rules.items()) if rule >= 0))


def _uniform(*numbers: int) -> float:
    """Return a number in [0, 1), a hash of `numbers` by the mixing of SplitMix64 (Steele et al. 2014)."""
    bits = 0
    for number in numbers:
        bits = (bits + number + 0x9E3779B97F4A7C15) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        bits ^= bits >> 31
    return bits / (1 << 64)
