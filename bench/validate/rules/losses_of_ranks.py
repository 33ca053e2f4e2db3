"""Whether reports have the losses that were trained, and whether one rank's are higher than the others'.

All ranks draw from one shuffled order, so only chance should differ. The run is cut into stretches. Only a higher loss is
reported: the mean of a few samples of a long-tailed loss is mostly low.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from math import isclose

import numpy as np
from numpy.typing import NDArray

from bench.base.grouping import grouped
from bench.results.runfolder import group_of
from bench.validate.records.run_records import Records
from ddp.core.messages.events import Progress
from ddp.core.settings.averaging import stays_apart

STRETCHES, FEWEST = 16, 12
"""Number of stretches, of equal numbers of samples; and how many of them a rank must have data in."""
ROUNDS = 8
"""Least number of averages, unless each step averages."""
UNEVEN = 2.0
"""Factor by which a rank's samples in a stretch may differ from the others': a rank that averages less often has
another model."""
BEYOND = 7.0
"""Standard errors beyond which a difference is not chance; the largest in clean runs is 2.3."""
RATIO, SHARE = 1.25, 0.01
"""Factor by which a loss must be higher, in the mean of the stretches and over all of them (in clean runs at most 1.09
and 1.28); and least difference, as a fraction of the first stretch's loss."""

ROUNDING = 1e-6
"""Relative tolerance of sums of losses: in double precision, in another order."""

Share = tuple[int, int]
"""(epoch, rank)."""


def reported_otherwise(known: Records, broken: Collection[Share]) -> Iterator[str]:
    """Yield the ranks and epochs whose reports have another sum of losses than the ranks' second sums, which are added up
    apart from reports. Not compared: `broken` ones, and sums of different samples, as in an epoch that was resumed."""
    reports = grouped(((event.epoch, event.rank), event) for event in known.progress)
    sums = grouped(((each.epoch, each.rank), each) for each in known.trained)
    for (epoch, rank), own in sorted(sums.items()):
        progress = reports[epoch, rank]
        reported, trained = [event.loss_sum for event in progress], [each.loss_sum for each in own]
        unequal = sum(event.samples for event in progress) != sum(each.samples for each in own)
        if (epoch, rank) in broken or unequal or None in reported or None in trained:
            continue
        reported_sum, trained_sum = sum(filter(None, reported)), sum(filter(None, trained))
        size = sum(map(abs, filter(None, reported)))
        if not isclose(reported_sum, trained_sum, rel_tol=ROUNDING, abs_tol=ROUNDING * size):
            what = f"reports have a sum of losses of {reported_sum:.6g}, {trained_sum:.6g} was trained"
            yield f"rank {rank}, epoch {epoch}: {what}"


def higher_loss(known: Records) -> str:
    """Name the rank whose loss is above the others' in a run that went as planned; empty: none, or it cannot be
    judged."""
    reports = known.progress
    ranks = 1 + max((report.rank for report in reports), default=0)
    if ranks < 2 or known.resumed or any(plan.dispatch != "progressive" for plan in known.plans):
        return ""
    if any(report.loss_sum is None for report in reports) or not _come_together(known):
        return ""
    sums, counts = _stretches(reports, ranks)
    for rank in range(ranks):
        own, others = counts[:, rank], (counts.sum(1) - counts[:, rank]) / (ranks - 1)
        stretches = (own > 0) & (own <= UNEVEN * others) & (others <= UNEVEN * own)
        if stretches.sum() >= FEWEST and _above(sums[stretches], counts[stretches], rank):
            return _line(reports, rank)
    return ""


def _come_together(known: Records) -> bool:
    """Return whether replicas become equal again and again: otherwise a slow rank has another model."""
    if any(stays_apart(group_of(group_of(each.spec, "config"), "averaging").get("elastic")) for each in known.headers):
        return False
    return len(known.closed) >= ROUNDS or any(plan.in_step for plan in known.plans)


def _stretches(reports: Sequence[Progress], ranks: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (sums of losses, numbers of samples), both [stretches, ranks]."""
    size = np.array([report.samples for report in reports], np.float64)
    places = np.minimum((np.cumsum(size) - size / 2) * STRETCHES / size.sum(), STRETCHES - 1).astype(int)
    sums, counts = np.zeros((STRETCHES, ranks)), np.zeros((STRETCHES, ranks))
    rank = [report.rank for report in reports]
    np.add.at(sums, (places, rank), [report.loss_sum or 0.0 for report in reports])
    np.add.at(counts, (places, rank), size)
    return sums, counts


def _above(sums: NDArray[np.float64], counts: NDArray[np.float64], rank: int) -> bool:
    """Return whether a rank's losses are higher by far more than chance explains. Each stretch's difference is taken
    relative to the sum of both means, so that few samples cannot dominate."""
    own, others = sums[:, rank], sums.sum(1) - sums[:, rank]
    samples, of_others = counts[:, rank], counts.sum(1) - counts[:, rank]
    mean, other = own / samples, others / of_others
    if min(mean.min(), other.min()) <= 0:
        return False
    apart = (mean - other) / (mean + other)
    center, error = apart.mean(), apart.std(ddof=1) / np.sqrt(len(apart))
    total, rest = own.sum() / samples.sum(), others.sum() / of_others.sum()
    large = total > RATIO * rest and total - rest > SHARE * sums[0].sum() / counts[0].sum()
    return bool(large and center > BEYOND * error and (1 + center) / (1 - center) > RATIO)


def _line(reports: Sequence[Progress], rank: int) -> str:
    """Name the epoch in which a rank's loss exceeds the others' most."""
    losses: dict[int, list[float]] = defaultdict(lambda: [0.0] * 4)
    for report in reports:
        place = 0 if report.rank == rank else 2
        losses[report.epoch][place] += report.loss_sum or 0.0
        losses[report.epoch][place + 1] += report.samples
    means = {epoch: (row[0] / row[1], row[2] / row[3]) for epoch, row in losses.items() if row[1] and row[3]}
    epoch = max(means, key=lambda each: means[each][0] / means[each][1])
    own, others = means[epoch]
    return (
        f"rank {rank}, epoch {epoch}: its training loss is {own:.4g}, the other ranks' {others:.4g}, on the same data"
    )
