"""When ranks were lost and came back, and when they became slow: by their last words and first ones, and their reports."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import attrgetter
from statistics import median

from bench.results.schema import Metrics
from bench.validate.recount.figure import Figure
from bench.validate.run_records import Records
from ddp.core.events import Averaged, Progress
from ddp.core.faults import parse

SECOND = 1e-6
WINDOW_S = 0.1
"""Least work of a window: shorter ones between two averages are taken together."""
USUAL, WARM = 16, 1
"""Windows that a pace is the median of, at most; of a rank's first ones nothing is known."""
ROUGHLY = 2.0
"""How many times off the pace of a slow rank may be beyond what windows before make of it: which are usual is not known."""
SINCE = 5
"""Version of results from which on ranks become slow as here."""
SLOWER, MANY = 2.5, 8
"""Times that the samples of so many windows take as long as before: such a rank is named, however busy its machine is."""


_KINDS = ("own", "whole")


def losses(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield who was lost, when that was noticed where somebody said so, and how long it was away, unless the run resumed."""
    if known.resumed or not known.headers:
        return
    zero = known.headers[-1].launched
    rows = [(number, row) for number, row in enumerate(m.faults) if row.rank is not None]
    ranks = {event.rank for event in (*known.failed, *known.lost)} | {order.rank for order in known.drops}
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
    """What a rank did between two averages, or several times that. Seconds are of a sample."""

    began: float
    ended: float
    own: float
    whole: float
    """With what it waited for a core."""


def slow_ranks(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield when each rank became slow, and by how much, of runs that lost nobody."""
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
            yield Figure(f"{name}.healed_s", row.healed_s, _nearest(begins, row.healed_s), SECOND)
        if row.cause == "link":
            continue
        made = windows.get(row.rank, [])
        slow = [
            each
            for each in made
            if row.seconds - SECOND <= each.began - zero and each.ended - zero <= row.named_s + SECOND
        ]
        before = [each for each in made if each.ended - zero < row.seconds + SECOND][WARM:]
        yield Figure(f"{name}.windows", row.windows, len(slow))
        if slow and before:
            # A machine that is crowded shows in a rank's own work, too; and some windows before may have been slow.
            factors = [getattr(slow[-1], kind) / getattr(each, kind) for each in before for kind in _KINDS]
            low, high = min(factors) / ROUGHLY, max(factors) * ROUGHLY
            yield Figure(f"{name}.factor", row.factor, (low + high) / 2, (high - low) / 2)
    for rank, begin, end in _slowed(m, known):
        usual = [each.whole for each in windows[rank] if each.ended < begin][WARM:][-USUAL:]
        then = [each.whole for each in windows[rank] if begin <= each.began and each.ended <= end]
        if min(len(usual), len(then)) >= MANY and median(then) >= SLOWER * median(usual):
            rows = [row for row in m.slow_ranks if row.rank == rank and row.named_s + zero <= end + SECOND]
            named = any(row.healed_s is None or row.healed_s + zero > begin for row in rows)
            yield Figure(f"slow_ranks has rank {rank}, {median(then) / median(usual):.3g} times as slow", named, True)


def _slowed(m: Metrics, known: Records) -> Iterator[tuple[int, float, float]]:
    """Yield which ranks a script slows down, and between which times."""
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
    """Return the time that may be meant; None: there is none."""
    return min(times, key=lambda time: abs(time - recorded), default=None)


def _windows(known: Records, rank: int) -> list[_WorkWindow]:
    """Return the windows of a rank that its work is told of in."""
    inside, made = any(plan.in_step for plan in known.plans), list[_WorkWindow]()
    every: list[Progress | Averaged] = [*known.progress, *known.averaged]
    began, samples, own, waited, averaged = None, 0, 0.0, 0.0, inside
    for event in sorted((event for event in every if event.rank == rank), key=attrgetter("at")):
        if isinstance(event, Averaged):
            averaged = True
        elif (work := event.work) is not None:
            began = event.at - event.busy_s if began is None else began
            samples, away = samples + event.samples, work.no_core + work.no_core_data
            own, waited = own + work.compute + work.data - away, waited + away
            if samples and own + waited >= WINDOW_S and averaged:
                made.append(_WorkWindow(began, event.at, max(own, SECOND) / samples, (own + waited) / samples))
                began, samples, own, waited, averaged = None, 0, 0.0, 0.0, inside
    return made
