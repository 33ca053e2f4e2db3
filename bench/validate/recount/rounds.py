"""The rounds of averaging: what the coordinator recorded of each, recomputed from the ranks' events."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from math import fsum, inf

from bench.base.grouping import grouped, summed
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure
from bench.validate.sketches.resumption import most_ranks
from ddp.core.messages.events import Averaged, Progress, RoundClosed, Snapshot
from ddp.core.samples.spans import measure

SECOND = 1e-6


def rounds(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield the figures of each round, and the windows of the result."""
    answers: dict[int, dict[int, Averaged]] = defaultdict(dict)
    for answer in known.averaged:
        answers[answer.round][answer.rank] = answer
    reports: dict[tuple[int, int], list[Progress]] = defaultdict(list)
    """(rank, the round after these steps) -> reports."""
    parts = known.contributions()
    own = {rank: sorted(number for number, each in parts.items() if rank in each) for rank in range(most_ranks(m))}
    for report in known.progress:
        mine = own[report.rank]
        place = len(mine) if report.after is None else bisect_right(mine, report.after)
        if place < len(mine):
            reports[report.rank, mine[place]].append(report)
    closed = [event for event in known.closed if event.round in answers]
    totals = accumulate(sum(_of(parts[event.round], "samples")) for event in closed)
    for event, total in zip(closed, totals, strict=True):
        by_rank = [reports[rank, event.round] for rank in range(len(event.steps))]
        yield from _round(event, parts[event.round], answers[event.round], by_rank, m.backend != "cpu")
        if not known.resumed:
            yield Figure(f"round {event.round}: samples in the model", event.samples, total)
    yield from _windows(m, known)


def brought_in(known: Records) -> Iterator[Figure]:
    """Yield what each rank brought into rounds of a run that lost somebody, by its reports."""
    reports: dict[tuple[int, int], list[Progress]] = defaultdict(list)
    parts, joins = known.contributions(), [(event.rank, event.at) for event in known.joined]
    mine: dict[int, list[int]] = defaultdict(list)
    for number in sorted(parts):
        for rank in parts[number]:
            mine[rank].append(number)
    for report in () if known.resumed else known.progress:
        place = bisect_right(mine[report.rank], report.after) if report.after is not None else len(known.progress)
        if place >= len(mine[report.rank]):
            continue
        number = mine[report.rank][place]
        came = parts[number][report.rank].at
        if not any(rank == report.rank and report.at < at < came for rank, at in joins):  # what was lost is not in it
            reports[report.rank, number].append(report)
    for (rank, number), own in reports.items():
        part = parts[number][rank]
        if sum(event.steps for event in own) == part.steps:
            samples = sum(event.samples for event in own)
            yield Figure(f"round {number}: samples that rank {rank} brought in", part.samples, samples)


def entered(known: Records) -> Iterator[Figure]:
    """Yield what of each rank entered the model, which happens as rounds close: what it brought into them."""
    began = known.resumed[-1].at if known.resumed else -inf
    closed = grouped((event.at, event.round) for event in known.closed if event.at > began)
    if any(plan.in_step for plan in known.plans) or not closed:
        return
    parts, members = known.contributions(), {order.round: order.members for order in known.reduces}
    entries = summed(((event.at, event.rank), measure(event.spans)) for event in known.merged if event.at > began)
    amounts = summed(
        ((at, rank), part.samples)
        for at, numbers in closed.items()
        for number in numbers
        for rank, part in parts.get(number, {}).items()
        if rank in members.get(number, (rank,))
    )
    for at, rank in sorted({*entries, *amounts}):
        where, own = f"samples of rank {rank} in the model", entries.get((at, rank), 0)
        if at not in closed:
            yield Figure(f"{where} outside of a round", own, 0)
        elif known.snapshots or (at, rank) in amounts:  # else it was lost in a collective, which may have had its part
            yield Figure(f"round {closed[at][0]}: {where}", own, amounts.get((at, rank), 0))


def _of(parts: dict[int, Snapshot | Averaged], name: str) -> list[int]:
    return [getattr(part, name) for part in parts.values()]


def _round(
    event: RoundClosed,
    parts: dict[int, Snapshot | Averaged],
    answers: dict[int, Averaged],
    reports: list[list[Progress]],
    blocking: bool,
) -> Iterator[Figure]:
    name, ranks = f"round {event.round}", range(len(event.steps))
    yield Figure(f"{name}: steps", event.steps, [parts[rank].steps if rank in parts else 0 for rank in ranks])
    if all(sum(e.steps for e in own) == steps for own, steps in zip(reports, event.steps, strict=True)):
        brought_in = [parts[rank].samples if rank in parts else 0 for rank in ranks]
        yield Figure(f"{name}: samples brought in", brought_in, [sum(e.samples for e in own) for own in reports])
        yield Figure(f"{name}: busy seconds", event.busy_s, [fsum(e.busy_s for e in own) for own in reports], SECOND)
        losses = [e.loss_sum for own in reports for e in own]
        samples = sum(e.samples for own in reports for e in own)
        if samples and None not in losses:
            yield Figure(f"{name}: loss", event.loss, fsum(loss or 0.0 for loss in losses) / samples)
        last = [own[-1].lr for own in reports if own]
        if last:
            yield Figure(f"{name}: learning rate", event.lr, max(last))
    apart = [answers[rank].divergence or 0.0 if rank in answers else 0.0 for rank in ranks]
    yield Figure(f"{name}: divergence", event.divergence, apart)
    yield Figure(f"{name}: spread", event.spread, fsum(answer.distance or 0.0 for answer in answers.values()), 1e-9)
    if blocking:
        stays = [answers[rank].seconds if rank in answers else None for rank in ranks]
        wire = min((stay for stay in stays if stay is not None), default=0.0)
        away = fsum(answers[rank].away_s * part.samples for rank, part in parts.items() if rank in answers)
        cost = wire + away / max(sum(part.samples for part in parts.values()), 1)
        yield Figure(f"{name}: cost in seconds", event.sync_s, cost, SECOND)
        waits = [0.0 if stay is None else stay - wire for stay in stays]
        yield Figure(f"{name}: seconds of waiting", event.wait_s, waits, SECOND)


def _windows(m: Metrics, known: Records) -> Iterator[Figure]:
    if m.elche is None:
        return
    closed = known.measured().closed if known.resumed else known.closed
    rows = m.elche.windows
    yield Figure("elche.windows", [row.round for row in rows], [event.round for event in closed])
    for number, (row, event) in enumerate(zip(rows, closed, strict=False)):
        name = f"elche.windows[{number}]"
        work = zip(event.busy_s, event.steps, strict=True)
        yield Figure(f"{name}.steps", row.steps, event.steps)
        yield Figure(f"{name}.ms_per_batch", row.ms_per_batch, [1e3 * s / n if n else None for s, n in work])
    if known.plans:
        yield Figure("elche.anchor", m.elche.anchor, known.plans[-1].anchor)
        yield Figure("elche.counts", m.elche.counts, known.plans[-1].counts)
    if known.plans and not known.resumed:  # the result of a resumed run has only later plans
        plans = [(row.anchor, tuple(row.counts), row.phase) for row in m.elche.plans]
        given = [(plan.anchor, tuple(plan.counts), plan.phase) for plan in known.plans]
        changes = [each for before, each in zip([None, *given], given, strict=False) if each != before]
        yield Figure("elche.plans", plans, changes)
