"""Where the rank-seconds of a run went, by rank and cause, and how fast the run would be without each cause. Pure.

The seconds are those of `rank_seconds`, from launch to the last rank's end. Waiting is divided by the rank that was
waited for; training into input, computing, and the time by which a rank computes slower than the median rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.results.analysis.goodput import histories_of
from bench.results.analysis.histories import Histories
from bench.results.analysis.lateness import WAITING_FOR, lateness, with_arrivals
from bench.results.analysis.rank_seconds import seconds_by_rank
from bench.results.analysis.slow import row as slow_row
from bench.results.analysis.slow import sentence
from bench.results.analysis.slow_links import OVER_SLOW_LINK, divide
from bench.results.analysis.stream import RunRecords, Slices
from bench.results.analysis.stretches import clipped, seconds
from ddp.core.anomalies.slowness import HOST, SlowRank
from ddp.core.messages.commands import Drop
from ddp.core.network.links import Links

NAMES = {
    "compute": "computing",
    "data": "making batches",
    "comm": "communicating",
    "wait": "waiting",
    "eval": "evaluating",
    "other": "between steps",
}
"""Part of a rank's time -> its words in a sentence; other parts keep their name."""
COMPUTE, SLOWNESS, INPUT, ORDERS = "computing", "slower than the others", "input", "waiting for orders or the end"
"""Causes into which the parts `kept` and `waiting` are divided."""


@dataclass(frozen=True)
class TimeCause:
    """Seconds of one rank with one cause; or seconds of all ranks that one rank caused."""

    rank: int
    cause: str
    seconds: float
    share: float
    """Fraction of the rank-seconds of all ranks."""
    without: float | None
    """Samples per second, from launch to end, if those seconds had been training like the rest. None: no time would be
    left, or they were training."""


@dataclass(frozen=True)
class ExplainedRun:
    """All seconds of a run. The seconds of `causes` sum to `rank_seconds`."""

    ranks: int
    rank_seconds: float
    samples: int
    """Samples in the model; of a resumed run only those trained since."""
    samples_per_s: float
    """From launch to the last rank's end."""
    causes: tuple[TimeCause, ...]
    """Sorted by rank, then by seconds, largest first."""
    slow_ranks: tuple[TimeCause, ...]
    """Cost of each rank by being slower than others, or by a link that became slow: its own extra seconds, and those
    of the ranks that waited for it."""
    hidden: bool
    """Collectives lie inside backward passes. So waiting is inferred from when these passes began, and is a lower
    bound."""
    notes: tuple[str, ...] = ()
    """Sentences on slow links and ranks, and on where the times are from."""


def explained(
    stream: RunRecords, world_size: int, launched: float, ended: float, links: Links | None = None
) -> ExplainedRun | None:
    """Return where the time of a run went; None if it recorded no slices. `links`: those that are emulated."""
    if not stream.slices.rank.size:
        return None
    histories = histories_of(stream, world_size, launched, ended)
    span = histories.end - histories.begin
    if span <= 0:
        return None
    slices = with_arrivals(stream.slices) if stream.hidden else stream.slices
    rows = seconds_by_rank(slices, histories, late=lateness(stream, slices))
    whole = [_balanced(_divided(row, slices, histories, rank), span) for rank, row in enumerate(rows)]
    samples = {rank: _samples(histories, rank) for rank in range(world_size)}
    for row, slow in zip(whole, slowness([row[COMPUTE] for row in whole], list(samples.values())), strict=True):
        row[COMPUTE], row[SLOWNESS] = row[COMPUTE] - slow, slow
    slow_ones = [each for each in stream.figures.slow.ranks if each.cause != HOST]
    until = [_until_lost(each, stream) for each in slow_ones]
    notes = divide(whole, slices, stream.behind, until, links) if not stream.hidden else []
    run = causes_of(whole, span, sum(samples.values()), stream.hidden)
    return replace(run, notes=(*(sentence(slow_row(each, stream.zero)) for each in slow_ones), *notes))


def _until_lost(slow: SlowRank, stream: RunRecords) -> SlowRank:
    """Return a slow rank with the end of its slowness, if that was the loss of the rank."""
    losses = [at for at, record in stream.moves if isinstance(record, Drop) and record.rank == slow.rank]
    gone = min((at for at in losses if at >= slow.named), default=None)
    return replace(slow, healed=gone) if slow.healed is None else slow


def causes_of(rows: Sequence[dict[str, float]], span: float, samples: int, hidden: bool = False) -> ExplainedRun:
    """Build the result from rows of seconds by cause, one per rank; each row sums to `span`."""
    size = len(rows)

    def row(rank: int, cause: str, spent: float) -> TimeCause:
        left = span - spent / size
        lost = cause != COMPUTE and left > span * 1e-9
        return TimeCause(rank, cause, spent, spent / (size * span), samples / left if lost else None)

    causes = [row(rank, cause, spent) for rank, each in enumerate(rows) for cause, spent in each.items() if spent > 0]
    slow = [
        rows[rank].get(SLOWNESS, 0.0)
        + sum(each.get(f"{cause}{rank}", 0.0) for each in rows for cause in (WAITING_FOR, OVER_SLOW_LINK))
        for rank in range(size)
    ]
    blamed = [row(rank, "slow rank", spent) for rank, spent in enumerate(slow) if spent > 0]
    return ExplainedRun(
        size,
        size * span,
        samples,
        samples / span,
        tuple(sorted(causes, key=lambda each: (each.rank, -each.seconds))),
        tuple(sorted(blamed, key=lambda each: -each.seconds)),
        hidden,
    )


def slowness(compute: Sequence[float], samples: Sequence[int]) -> list[float]:
    """Return, by rank, the seconds of computing beyond what the (lower) median rank would need for as many samples."""
    paces = sorted(spent / count for spent, count in zip(compute, samples, strict=True) if count and spent > 0)
    if not paces:
        return [0.0] * len(compute)
    typical = paces[(len(paces) - 1) // 2]
    return [max(spent - count * typical, 0.0) if count else 0.0 for spent, count in zip(compute, samples, strict=True)]


def _divided(row: dict[str, float], slices: Slices, histories: Histories, rank: int) -> dict[str, float]:
    """Return the seconds of a rank by cause: `kept` becomes computing and input, `waiting` becomes waiting for
    orders."""
    mine = slices.places(rank)
    data = mine[slices.kind[mine] == "data"]
    reading = seconds(clipped(slices.start[data], slices.stop[data], histories.begin, histories.end))
    fetched = min(reading * histories.kept(rank), row["kept"]) if data.size else 0.0
    rest = {part: value for part, value in row.items() if part not in ("kept", "waiting")}
    return {COMPUTE: row["kept"] - fetched, INPUT: fetched, ORDERS: row["waiting"], **rest}


def _balanced(row: dict[str, float], span: float) -> dict[str, float]:
    """Return the row scaled or filled up to sum to `span`, as slices may overlap by rounding or leave gaps."""
    row = {cause: max(value, 0.0) for cause, value in row.items()}
    total = float(np.sum(list(row.values())))
    if total > span:
        return {cause: value * span / total for cause, value in row.items()}
    return row | {"other": row["other"] + span - total}


def _samples(histories: Histories, rank: int) -> int:
    trained = histories.trained[rank]
    return round(trained * histories.kept(rank))
