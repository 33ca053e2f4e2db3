"""Auto-balancing: how a batch is cut over replicas of unequal speed. Pure arithmetic.

Owns measured throughput and the shares that follow from it. Must not know devices or clocks. Source: the auto-balancer of
floDl's graph mode. Difference: shares that would make a step hardly shorter are not taken over, so that replicas of equal
speed keep equal shards, and the same bits, whatever the jitter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.allocation import level
from ddp.core.spans import sharers

SMOOTHING = 0.3
"""Weight of the newest throughput."""
CALIBRATION = 10
"""Steps of equal (or hinted) shares before the first look."""
EVERY = 50
"""Steps from one look to the next."""
MIN_SHARE = 0.05
"""Smallest share of a replica: one that gets nothing is never measured again."""
GAIN = 0.05
"""Part by which a step must get shorter, and by more than the jitter, for other shares to be taken over."""
CERTAIN = 0.5
"""A step that gets shorter by so much is worth it, however much devices jitter (on a busy machine, without bound)."""


@dataclass(frozen=True)
class Balance:
    """What is known of the replicas. Tuples are by rank."""

    ratios: tuple[float, ...]
    """Shares of the samples; they sum to 1."""
    throughput: tuple[float, ...]
    """Smoothed samples per millisecond; 0: not measured yet."""
    steps: int = 0
    """Steps measured."""
    jitter: tuple[float, ...] = ()
    """Smoothed relative change of the throughput from what was expected."""


def start(size: int, speeds: tuple[float, ...] | None = None) -> Balance:
    """Return equal shares, or shares in proportion to `speeds`. Raises ValueError unless there are `size`, above 0."""
    if speeds is not None and (len(speeds) != size or not all(0 < speed < float("inf") for speed in speeds)):
        raise ValueError(f"speed_hint={list(speeds)}: give a positive number for each of the {size} replicas")
    return Balance(shares(speeds or (1.0,) * size), (0.0,) * size)


def follow(balance: Balance, samples: tuple[int, ...], busy_s: tuple[float, ...]) -> Balance:
    """Return the balance after a step of `samples` and `busy_s` seconds by rank; a rank without samples keeps its own."""
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
    """Return shares in proportion to `speeds` (0: unknown, taken for the slowest), none below `MIN_SHARE` or equal parts."""
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
    """Return samples by rank: `total` in proportion to `ratios`; of equal ones the first ranks take the odd samples.

    A shard has `least` samples or more (batch norm needs two), or none where there are too few to go round: then those with
    the largest shares get them. A batch below `least` is one shard.
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
