"""Links between ranks: their properties, how a user writes them, presets. `link_costs` computes transfer times.

The runtime and the simulator use the same `Links`. Knows no clock and no transport."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

MOST_S, LEAST_BANDWIDTH, MOST_BANDWIDTH = 60.0, 1e3, 1e13
SEGMENT = 1460
"""Bytes of a TCP segment, which a lost packet carries."""
RETRANSMIT_S = 0.2
"""Least seconds until a lost message is sent again: Linux's minimal retransmission timeout."""


@dataclass(frozen=True)
class RankLink:
    """A link from one rank to another, one way."""

    latency_s: float
    """Latency of a message, one way."""
    bandwidth: float
    """Bytes per second."""
    jitter_s: float = 0.0
    """Largest deviation of a message's latency, uniformly distributed."""
    loss: float = 0.0
    """Fraction of packets that are lost and sent again."""
    shared: bool = False
    """Whether simultaneous transfers share the bandwidth; else each pair has its own."""

    def __post_init__(self) -> None:
        if not 0 <= self.jitter_s <= self.latency_s <= MOST_S:
            raise ValueError(f"link {self}: latency must be from 0 to {MOST_S:g} s, jitter no more than latency")
        if not LEAST_BANDWIDTH <= self.bandwidth <= MOST_BANDWIDTH:
            raise ValueError(f"link {self}: bandwidth must be from 8kbit to 80000gbit")
        if not 0 <= self.loss <= 0.5:
            raise ValueError(f"link {self}: loss must be from 0 to 50%")

    def __str__(self) -> str:
        if name := next((name for name, preset in PRESETS.items() if preset == self), None):
            return name
        parts = [f"{self.latency_s * 1e3:.12g}ms", f"{self.bandwidth * 8e-6:.12g}mbit"]
        parts += [f"jitter{self.jitter_s * 1e3:.12g}ms"] if self.jitter_s else []
        parts += [f"loss{self.loss * 100:.12g}%"] if self.loss else []
        return "/".join([*parts, *(["shared"] if self.shared else [])])

    @cached_property
    def again_s(self) -> float:
        """Seconds that a lost message costs: the sender's timeout."""
        return RETRANSMIT_S + 2 * self.latency_s

    @cached_property
    def rate(self) -> float:
        """Effective bytes per second: with losses at most TCP's throughput, 1.22 segments / (round trip x sqrt(loss))
        (Mathis et al. 1997)."""
        through, wave = self.bandwidth * (1 - self.loss), 2 * self.latency_s * self.loss**0.5
        return min(through, 1.22 * SEGMENT / wave) if wave else through


PRESETS = {
    "nvlink": RankLink(5e-6, 450e9),
    "ib": RankLink(3e-6, 50e9),
    "ethernet_10g": RankLink(30e-6, 1.25e9),
    "wan_1g_30ms": RankLink(0.03, 125e6),
    "home_100m": RankLink(0.015, 12.5e6, 0.005, 0.001),
}
"""Name -> link, with latency and bandwidth as given by vendors and operators, one way."""
RING, TREE, HALVING = "ring", "tree", "halving_doubling"
ALGORITHMS = (RING, TREE, HALVING)
"""Algorithms of a collective."""
Group = tuple[tuple[int, int], ...]
"""Ranges of ranks: (first, last) of each."""


@dataclass(frozen=True)
class LinkRule:
    """A link and the pairs that use it: all; with one group, the pairs within it; with several, the pairs between two of
    them."""

    groups: tuple[Group, ...]
    link: RankLink

    def __str__(self) -> str:
        ranges = ["_".join(f"{a}" if a == b else f"{a}-{b}" for a, b in group) for group in self.groups]
        return f"{'+'.join(ranges)}:{self.link}" if ranges else str(self.link)

    def connects(self, a: int, b: int) -> bool:
        """Return whether the ranks `a` and `b` use this link."""
        if not self.groups:
            return True
        first, second = self._group(a), self._group(b)
        return first >= 0 and second >= 0 and (first == second) == (len(self.groups) == 1)

    def _group(self, rank: int) -> int:
        inside = (any(low <= rank <= high for low, high in group) for group in self.groups)
        return next((place for place, is_in in enumerate(inside) if is_in), -1)


@dataclass(frozen=True)
class Links:
    """The links of a run. A pair without a rule is as fast as the transport."""

    rules: tuple[LinkRule, ...]
    algorithm: str = RING
    seed: int = 0
    """Seed of jitter and losses."""

    def between(self, a: int, b: int) -> int:
        """Return the index of the last rule for two ranks; -1: none."""
        places = range(len(self.rules) - 1, -1, -1)
        return next((place for place in places if self.rules[place].connects(a, b)), -1)

    @property
    def words(self) -> list[str]:
        """The links in the form that `parse` reads."""
        return [*map(str, self.rules), *([self.algorithm] if self.algorithm != RING else [])]

    @cached_property
    def uniform(self) -> bool:
        """Whether all pairs use the last rule."""
        return bool(self.rules) and not self.rules[-1].groups

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.rules, self.algorithm, self.seed))


_NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
_TIME, _RATE = re.compile(rf"(jitter)?{_NUMBER}(us|ms|s)"), re.compile(rf"{_NUMBER}(k|m|g)bit")
_LOSS, _RANGES = re.compile(rf"loss{_NUMBER}%"), re.compile(r"\d{1,6}(-\d{1,6})?(_\d{1,6}(-\d{1,6})?)*")
_SECONDS, _BITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}, {"k": 1e3, "m": 1e6, "g": 1e9}
FORM = "[RANKS+RANKS:]LATENCY/BANDWIDTH, such as wan_1g_30ms, 30ms/1gbit/jitter5ms/loss0.1%/shared or 0-3+4-7:ib"


@lru_cache
def link(text: str) -> RankLink:
    """Parse one link: a preset, or its parts, which may also modify a preset. Raises ValueError that shows the form."""
    first, *rest = text.strip().split("/")
    known = PRESETS.get(first)
    given: dict[str, float | bool] = {}
    for part in rest if known is not None else [first, *rest]:
        if time := _TIME.fullmatch(part):
            name, value = "jitter_s" if time[1] else "latency_s", float(time[2]) * _SECONDS[time[3]]
        elif rate := _RATE.fullmatch(part):
            name, value = "bandwidth", float(rate[1]) * _BITS[rate[2]] / 8
        elif loss := _LOSS.fullmatch(part):
            name, value = "loss", float(loss[1]) / 100
        elif part == "shared":
            name, value = "shared", True
        else:
            raise ValueError(f"link {text!r}: {part!r} is none of {', '.join(PRESETS)}, and not of the form {FORM}")
        if name in given:
            raise ValueError(f"link {text!r}: {part!r} is its second {name.removesuffix('_s')}; the form is {FORM}")
        given[name] = value
    if known is not None:
        return replace(known, **given)  # type: ignore[arg-type]  # by name
    if not {"latency_s", "bandwidth"} <= given.keys():
        raise ValueError(f"link {text!r} needs latency and bandwidth: {FORM}")
    return RankLink(**given)  # type: ignore[arg-type]


def parse(words: str | Sequence[str], size: int | None = None, seed: int = 0) -> Links | None:
    """Parse the links of a run of `size` ranks (None: any number): rules, of which later ones override earlier ones, and an
    algorithm. Return None if there are no rules. Raises ValueError."""
    rules: list[LinkRule] = []
    algorithms: list[str] = []
    for word in map(str, [words] if isinstance(words, str) else words):
        if word in ALGORITHMS:
            algorithms.append(word)
            continue
        who, _, text = word.rpartition(":")
        groups = tuple(_group(part, word) for part in who.split("+")) if who else ()
        highest = max((high for group in groups for _, high in group), default=0)
        if size is not None and highest >= size:
            raise ValueError(f"link {word!r} is for rank {highest}, but ranks are 0 to {size - 1}")
        rules.append(LinkRule(groups, link(text)))
    if rules and len(set(algorithms)) > 1:
        raise ValueError(f"links have one algorithm: {' or '.join(algorithms)}")
    return Links(tuple(rules), algorithms[-1] if algorithms else RING, seed) if rules else None


def _group(text: str, word: str) -> Group:
    if not _RANGES.fullmatch(text):
        raise ValueError(f"link {word!r}: {text!r} is no group of ranks, such as 0-3 or 0_2; the form is {FORM}")
    pairs = [part.split("-") for part in text.split("_")]
    ranges = tuple((int(pair[0]), int(pair[-1])) for pair in pairs)
    if any(low > high for low, high in ranges):
        raise ValueError(f"link {word!r}: in {text!r} a range ends before it begins")
    return ranges
