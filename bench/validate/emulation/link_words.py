"""Reads emulated links from the words of `config.json` as the documentation says, without the engine's parser. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

PRESETS = {
    "nvlink": "5us/3600gbit",
    "ib": "3us/400gbit",
    "ethernet_10g": "30us/10gbit",
    "wan_1g_30ms": "30ms/1gbit",
    "home_100m": "15ms/100mbit/jitter5ms/loss0.1%",
}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"k": 1e3 / 8, "m": 1e6 / 8, "g": 1e9 / 8}
"""Bytes per second of a kbit, mbit and gbit per second."""
SEGMENT, TIMEOUT_S = 1460, 0.2
"""Bytes of a TCP segment, and the least seconds until a lost one is sent again."""
Ranges = tuple[tuple[int, int], ...]


class WrittenLink(NamedTuple):
    """A link in seconds and bytes per second, and the groups of ranks that it is within or between; none: all ranks."""

    groups: tuple[Ranges, ...]
    latency: float
    jitter: float
    bandwidth: float
    loss: float
    shared: bool

    @property
    def again(self) -> float:
        """Seconds that a lost message costs."""
        return TIMEOUT_S + 2 * self.latency

    @property
    def rate(self) -> float:
        """Bytes per second that arrive: without the lost ones, and no more than TCP moves (Mathis et al. 1997)."""
        arrives = self.bandwidth * (1 - self.loss)
        round_trip = 2 * self.latency
        return min(arrives, 1.22 * SEGMENT / (round_trip * self.loss**0.5)) if round_trip * self.loss else arrives

    def joins(self, a: int, b: int) -> bool:
        """Return whether two ranks communicate over this link."""
        places = [[any(low <= rank <= high for low, high in group) for group in self.groups] for rank in (a, b)]
        if not self.groups:
            return True
        if not all(map(any, places)):
            return False
        return (places[0].index(True) == places[1].index(True)) == (len(self.groups) == 1)


class WrittenLinks(NamedTuple):
    """The links of a run, of which later ones override earlier ones, and the algorithm of its collectives."""

    links: tuple[WrittenLink, ...]
    algorithm: str

    def between(self, a: int, b: int) -> WrittenLink | None:
        """Return the link between two ranks; None: they communicate at full speed."""
        return next((link for link in reversed(self.links) if link.joins(a, b)), None)


def read_links(words: str | Iterable[str]) -> WrittenLinks:
    """Read the links of a run, which the engine has accepted."""
    links, algorithm = [], "ring"
    for word in [words] if isinstance(words, str) else map(str, words):
        if word in ("ring", "tree", "halving_doubling"):
            algorithm = word
        else:
            links.append(_read(word))
    return WrittenLinks(tuple(links), algorithm)


def _read(word: str) -> WrittenLink:
    who, _, text = word.strip().rpartition(":")
    first, *more = text.split("/")
    about = {"latency": 0.0, "jitter": 0.0, "bandwidth": 0.0, "loss": 0.0}
    for part in "/".join([PRESETS.get(first, first), *more]).split("/"):
        if token := re.fullmatch(r"(jitter|loss|)([\d.e-]+)(us|ms|s|[kmg]bit|%)", part):
            kind, number, unit = token[1], float(token[2]), token[3]
            if unit == "%":
                about["loss"] = number / 100
            elif unit in SECONDS:
                about[kind or "latency"] = number * SECONDS[unit]
            else:
                about["bandwidth"] = number * BYTES[unit[0]]
    return WrittenLink(tuple(map(_ranges, who.split("+"))) if who else (), **about, shared="shared" in more)


def _ranges(text: str) -> Ranges:
    pairs = [part.split("-") for part in text.split("_")]
    return tuple((int(pair[0]), int(pair[-1])) for pair in pairs)
