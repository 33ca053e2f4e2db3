"""Auto-balancing: divides a batch over replicas of unequal speed. Pure arithmetic.

Owns measured throughput and the shares that follow from it. Must not know devices or clocks. Source: the auto-balancer of
floDl's graph mode. Difference: new shares are adopted only if they shorten a step noticeably, so replicas of equal speed
keep equal shards, and results keep their bits in spite of jitter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.samples.spans import sharers
from ddp.core.window_sizes.allocation import level

SMOOTHING = 0.3
"""Weight of the newest measurement in the smoothed throughput."""
CALIBRATION = 10
"""Number of steps with equal (or hinted) shares before the first rebalancing."""
EVERY = 50
"""Number of steps between rebalancings."""
MIN_SHARE = 0.05
"""Smallest share of a replica. Without a share, its throughput would never be measured again."""
GAIN = 0.05
"""Fraction by which new shares must shorten a step to be adopted. The gain must also exceed the jitter."""
CERTAIN = 0.5
"""Gain that is always enough, whatever the jitter, which is unbounded on a busy machine."""


@dataclass(frozen=True)
class Balance:
    """Measured throughput and shares of the replicas. Tuples are by rank."""

    ratios: tuple[float, ...]
    """Fraction of the samples of each rank; they sum to 1."""
    throughput: tuple[float, ...]
    """Smoothed samples per millisecond; 0: not measured yet."""
    steps: int = 0
    """Number of steps measured."""
    jitter: tuple[float, ...] = ()
    """Smoothed relative deviation of each measurement from the smoothed throughput."""


def start(size: int, speeds: tuple[float, ...] | None = None) -> Balance:
    """Return equal shares, or shares in proportion to `speeds`. Raises ValueError unless `speeds` has `size` positive
    numbers."""
    if speeds is not None and (len(speeds) != size or not all(0 < speed < float("inf") for speed in speeds)):
        raise ValueError(f"speed_hint={list(speeds)}: give a positive number for each of the {size} replicas")
    return Balance(shares(speeds or (1.0,) * size), (0.0,) * size)


def follow(balance: Balance, samples: tuple[int, ...], busy_s: tuple[float, ...]) -> Balance:
    """Return the balance after a step. `samples` and `busy_s` (seconds) are by rank; a rank without samples keeps its
    throughput."""
    before = balance.throughput
    new = [n / (1000 * busy) if n and busy > 0 else v for v, n, busy in zip(before, samples, busy_s, strict=True)]
    missed = [abs(value - old) / old if old else 0.0 for value, old in zip(new, before, strict=True)]
    jitter = zip(balance.jitter or (0.0,) * len(new), missed, strict=True)
    balance = replace(
        balance,
        throughput=tuple(map(_smooth, before, new)),
        steps=balance.steps + 1,
        jitter=tuple(SMOOTHING * miss + (1 - SMOOTHING) * old for old, miss in jitter),
    )
    return _rebalance(balance) if _due(balance.steps) else balance


def shares(speeds: tuple[float, ...]) -> tuple[float, ...]:
    """Return shares in proportion to `speeds`. An unknown speed (0) is taken for the slowest known one. No share is below
    `MIN_SHARE`, or below 1/n for n > 20 replicas."""
    least = min(MIN_SHARE, 1 / len(speeds))
    slowest = min((speed for speed in speeds if speed > 0), default=1.0)
    known = [speed or slowest for speed in speeds]
    raised: set[int] = set()
    while True:
        free, rest = 1 - least * len(raised), sum(speed for rank, speed in enumerate(known) if rank not in raised)
        ratios = [least if rank in raised else free * speed / rest for rank, speed in enumerate(known)]
        low = {rank for rank, ratio in enumerate(ratios) if ratio < least and rank not in raised}
        if not low or len(raised | low) == len(known):
            return tuple(ratios)
        raised |= low


def cut(total: int, ratios: tuple[float, ...], least: int = 1) -> tuple[int, ...]:
    """Return the number of samples of each rank: `total` divided in proportion to `ratios`. With equal ratios, the first
    ranks get the remaining samples.

    A shard has at least `least` samples (batch norm needs two) or none. If there are too few samples for all ranks, the
    ranks with the largest shares get them. A batch smaller than `least` is a single shard.
    """
    able = sharers(total, len(ratios), least)
    chosen = sorted(range(len(ratios)), key=lambda rank: (-ratios[rank], rank))[:able]
    caps = tuple(total if rank in chosen else 0 for rank in range(len(ratios)))
    sizes = list(level(ratios, caps, total))
    for rank in chosen:
        while sizes[rank] < least and max(sizes) > least:
            sizes[sizes.index(max(sizes))] -= 1
            sizes[rank] += 1
    return tuple(sizes)


def _smooth(old: float, new: float) -> float:
    return SMOOTHING * new + (1 - SMOOTHING) * old if old else new


def _due(steps: int) -> bool:
    return steps == CALIBRATION or (steps > CALIBRATION and (steps - CALIBRATION) % EVERY == 0)


def _rebalance(balance: Balance) -> Balance:
    if not all(balance.throughput):
        return balance
    wanted = shares(balance.throughput)
    now, then = (max(r / v for r, v in zip(x, balance.throughput, strict=True)) for x in (balance.ratios, wanted))
    least = min(max(GAIN, sum(balance.jitter) / len(balance.jitter)), CERTAIN)
    return replace(balance, ratios=wanted) if then < (1 - least) * now else balance
