"""When ranks were lost and returned, and when they became slow: by their last and first events, and their reports."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import attrgetter
from statistics import median

from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure
from ddp.core.messages.events import Averaged, Progress
from ddp.core.settings.faults import parse

SECOND = 1e-6
WINDOW_S = 0.1
"""Least work in a window, seconds: shorter windows between averages are joined."""
USUAL, WARM = 16, 1
"""Most windows whose median is a rank's usual pace; and first windows of a rank that are ignored."""
ROUGHLY = 2.0
"""Factor by which a slow rank's pace may lie outside of what earlier windows give, as it is not known which are
usual."""
SINCE = 5
"""First version of results that finds slow ranks in this way."""
SLOWER, MANY = 2.5, 8
"""A rank must be named as slow if the median over at least `MANY` windows is `SLOWER` times the one before, however
busy its machine is."""


_KINDS = ("own", "whole")


def losses(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield who was lost, when that was noticed (if recorded), and how long the rank was away; nothing for resumed
    runs."""
    if known.resumed or not known.headers:
        return
    zero = known.headers[-1].launched
    rows = [(number, row) for number, row in enumerate(m.faults) if row.rank is not None and not row.earlier]
    failed = [event for event in known.failed if not event.of_all]
    ranks = {event.rank for event in (*failed, *known.lost)} | {order.rank for order in known.drops}
    yield Figure("faults: ranks", sorted({row.rank for _, row in rows if row.rank is not None}), sorted(ranks))
    for number, row in rows:
        name, words = f"faults[{number}]", known.failed if row.kind == "failed" else known.lost
        if row.kind in ("failed", "lost"):
            noticed = [event.at - zero for event in words if event.rank == row.rank]
            yield Figure(f"{name}.seconds", row.seconds, _nearest(noticed, row.seconds), SECOND)
        others = [other.seconds for _, other in rows if other.rank == row.rank and other.seconds > row.seconds]
        back = [event.at - zero - row.seconds for event in known.joined if event.rank == row.rank]
        came = [away for away in back if 0 < away < min(others, default=float("inf")) - row.seconds]
        yield Figure(f"{name}.back_s", row.back_s, came[0] if came else None, SECOND)


@dataclass(frozen=True)
class _WorkWindow:
    """The work of a rank between two averages, or over several of these intervals. Seconds are per sample."""

    began: float
    ended: float
    own: float
    whole: float
    """Including the time that it waited for a core."""
    batch: float
    """Samples per step: the steps of small batches need not be shorter."""


def slow_ranks(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield when each rank became slow, and by which factor, for runs that lost nobody."""
    if m.slow_ranks is None or m.schema_version < SINCE or known.resumed or not known.headers:
        return
    zero, windows = known.headers[-1].launched, {rank: _windows(known, rank) for rank in range(m.world_size)}
    reports = {rank: [e for e in known.progress if e.rank == rank] for rank in range(m.world_size)}
    for number, row in enumerate(m.slow_ranks):
        name, own = f"slow_ranks[{number}]", reports.get(row.rank, [])
        begins = [max(event.at - event.busy_s - zero, 0.0) for event in own]
        yield Figure(f"{name}.named_s", row.named_s, _nearest([event.at - zero for event in own], row.named_s), SECOND)
        yield Figure(f"{name}.seconds", row.seconds, _nearest(begins, row.seconds), SECOND)
        if row.healed_s is not None:
            yield Figure(f"{name}.healed_s", row.healed_s, _nearest([*begins, row.named_s], row.healed_s), SECOND)
        if row.cause == "link":
            continue
        made = windows.get(row.rank, [])
        slow = [
            each
            for each in made
            if row.seconds - SECOND <= each.began - zero and each.ended - zero <= row.named_s + SECOND
        ]
        before = [each for each in made if each.ended - zero < row.seconds + SECOND][WARM:]
        # Windows with batches unlike the usual ones may not have counted.
        least = min(len(slow), 2) if len({each.batch for each in slow}) > 1 else len(slow)
        yield Figure(f"{name}.windows", row.windows, (least + len(slow)) / 2, (len(slow) - least) / 2)
        if slow and before:
            # On a crowded machine a rank's own work takes longer, too, and some of the earlier windows may have been
            # slow.
            last = slow[-1]
            by_sample = [(each, getattr(last, kind) / getattr(each, kind)) for each in before for kind in _KINDS]
            factors = [ratio * by for each, ratio in by_sample for by in (1.0, last.batch / each.batch)]
            low, high = min(factors) / ROUGHLY, max(factors) * ROUGHLY
            yield Figure(f"{name}.factor", row.factor, (low + high) / 2, (high - low) / 2)
    for rank, begin, end in _slowed(m, known):
        usual = [each for each in windows[rank] if each.ended < begin][WARM:][-USUAL:]
        then = [each for each in windows[rank] if begin <= each.began and each.ended <= end]
        if min(len(usual), len(then)) >= MANY and (times := _times_as_slow(then, usual)) >= SLOWER:
            rows = [row for row in m.slow_ranks if row.rank == rank and row.named_s + zero <= end + SECOND]
            named = any(row.healed_s is None or row.healed_s + zero > begin for row in rows)
            yield Figure(f"slow_ranks has rank {rank}, {times:.3g} times as slow", named, True)


def _times_as_slow(then: Sequence[_WorkWindow], usual: Sequence[_WorkWindow]) -> float:
    """Return how many times as long samples and steps took."""
    samples = [median(each.whole for each in windows) for windows in (then, usual)]
    steps = [median(each.whole * each.batch for each in windows) for windows in (then, usual)]
    return min(samples[0] / samples[1], steps[0] / steps[1])


def _slowed(m: Metrics, known: Records) -> Iterator[tuple[int, float, float]]:
    """Yield (rank, begin, end) of the times at which a script slows a rank down."""
    script = sorted(map(parse, m.scripted_faults), key=lambda fault: fault.step)
    for fault in script:
        if fault.kind not in ("slow", "input"):
            continue
        own = [event for event in known.progress if event.rank == fault.rank]
        steps, ends = list(accumulate(event.steps for event in own)), [*(event.at for event in own), inf]
        later = [other.step for other in script if other.rank == fault.rank and other.step > fault.step]
        begin = ends[bisect_left(steps, fault.step)]
        yield fault.rank, begin, ends[bisect_left(steps, later[0]) - 1] if later else ends[-1]


def _nearest(times: Sequence[float], recorded: float) -> float | None:
    """Return the time that is nearest to the recorded one; None: there is none."""
    return min(times, key=lambda time: abs(time - recorded), default=None)


def _windows(known: Records, rank: int) -> list[_WorkWindow]:
    """Return the windows of a rank that its reports describe."""
    inside, made = any(plan.in_step for plan in known.plans), list[_WorkWindow]()
    every: list[Progress | Averaged] = [*known.progress, *known.averaged]
    began, samples, steps, own, waited, averaged = None, 0, 0, 0.0, 0.0, inside
    for event in sorted((event for event in every if event.rank == rank), key=attrgetter("at")):
        if isinstance(event, Averaged):
            averaged = True
        elif (work := event.work) is not None:
            began = event.at - event.busy_s if began is None else began
            samples, steps, away = samples + event.samples, steps + event.steps, work.no_core + work.no_core_data
            own, waited = own + work.compute + work.data - away, waited + away
            if samples and round(own + waited, 8) >= WINDOW_S and averaged:  # whatever the order of the sum
                paces = max(own, SECOND) / samples, (own + waited) / samples
                made.append(_WorkWindow(began, event.at, *paces, samples / steps))
                began, samples, steps, own, waited, averaged = None, 0, 0, 0.0, 0.0, inside
    return made
