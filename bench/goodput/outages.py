"""Histories of machines that fail and are repaired: from a recorded trace, or drawn from published rates. A rank is a
node.

Owns which rank is without a machine, and when. Knows nothing of training.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ddp import regular_files
from ddp.suggest import unknown

DAY_S = 86_400.0
MOST_BYTES = 1 << 26
"""Most bytes of a trace; the public one has 339 KB."""
MOST_OUTAGES = 10_000_000
"""Most outages of a history; so many take 2 GB."""
FORM = 'a JSON list of {"node_id": "n1", "event_time": DAYS from 0 up, "event_type": "fault_start" or "fault_end"}'
RATES = {"meta": 6.50, "llama3": 3.79, "bursts": 4.23}
"""Failures per 1,000 node-days. Meta's RSC-1 (Kokolis et al., HPCA 2025); Llama 3 (Dubey et al., 2024: 419 in 54 days
on 2,048 nodes); InfiniteHBD-Trace (Shou et al., SIGCOMM 2025), whose failures are no Poisson process."""
BURSTS_CV = 1.76
"""Coefficient of variation of the gaps between failures in InfiniteHBD-Trace."""
REPAIR_MEDIAN_D, REPAIR_P90_D = 0.85, 13.0
"""Median and 90th percentile of repair times in that trace, days; repairs are drawn from the log-normal distribution
with these."""
LEMONS, LEMONS_SHARE = 0.10, 1 / 3
"""Fraction of the nodes that have the given fraction of all failures, for `bursts`."""


class Outage(NamedTuple):
    """A time in which a rank has no machine, seconds."""

    start: float
    stop: float
    rank: int

    def since(self, at: float) -> Outage:
        """Return the same outage in seconds since the time `at`."""
        return Outage(self.start - at, self.stop - at, self.rank)


@dataclass(frozen=True)
class FailureTrace:
    """Recorded outages in days. `nodes` were observed for `days`, including those without any outage."""

    nodes: int
    days: float
    outages: tuple[tuple[str, float, float], ...]
    """(node, begin, end); those of a node do not overlap."""


def read_trace(path: Path, nodes: int) -> FailureTrace:
    """Read a trace in the format of InfiniteHBD: JSON objects with `node_id`, `event_time` (days) and `event_type`
    (`fault_start` or `fault_end`). Raises OSError, and ValueError that names what is wrong."""
    try:
        events = json.loads(regular_files.content(path, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no trace of faults: {error}; it must be {FORM}") from None
    if not isinstance(events, list) or not events:
        raise ValueError(f"{path}: no trace of faults: it has no list of events; it must be {FORM}")
    rows = list(map(_event, events))
    for event, row in zip(events, rows, strict=True):
        if row is None:
            raise ValueError(f"{path}: no trace of faults: event {str(event)[:80]}; it must be {FORM}")
    return _trace(path, [row for row in rows if row is not None], nodes)


def _event(event: Any) -> tuple[float, str, str, str] | None:
    """Return an event as (day, type, node, fault); None if it is none."""
    try:
        row = float(event["event_time"]), str(event["event_type"]), str(event["node_id"]), str(event.get("fault_type"))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return row if math.isfinite(row[0]) and row[0] >= 0 else None


def _trace(path: Path, rows: Sequence[tuple[float, str, str, str]], nodes: int) -> FailureTrace:
    if strange := {row[1] for row in rows} - {"fault_start", "fault_end"}:
        raise ValueError(f"{path}: event_type is fault_start or fault_end, not {min(strange)}")
    if not (days := max(row[0] for row in rows)):
        raise ValueError(f"{path}: no trace of faults: all events are at time 0")
    outages = tuple(_united(_paired(sorted(rows, key=lambda row: (row[0], row[1] == "fault_end")), days)))
    if not outages:
        raise ValueError(f"{path}: no trace of faults: no fault_start before its last event")
    if (named := len({node for node, _, _ in outages})) > nodes:
        raise ValueError(f"{path}: {named} nodes fail, and --nodes says that there were {nodes}")
    return FailureTrace(nodes, days, outages)


def _paired(rows: Sequence[tuple[float, str, str, str]], days: float) -> Iterator[tuple[str, float, float]]:
    """Pair the begins and ends of the same fault of a node, the earliest first. A fault without an end lasts to the
    end."""
    begun: dict[tuple[str, str], list[float]] = {}
    for at, what, node, fault in rows:
        if what == "fault_start":
            begun.setdefault((node, fault), []).append(at)
        elif begun.get((node, fault)):
            yield node, begun[node, fault].pop(0), at
    yield from ((node, at, days) for (node, _), starts in begun.items() for at in starts if at < days)


def _united(faults: Iterable[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Unite faults of a node that overlap or touch: it is down until the last of them is repaired."""
    united = list[tuple[str, float, float]]()
    for node, begin, end in sorted(faults):
        if united and united[-1][0] == node and begin <= united[-1][2]:
            _, begin, before = united.pop()
            end = max(before, end)
        united.append((node, begin, end))
    return united


def replayed(trace: FailureTrace, ranks: int, horizon_s: float, compress: float, seed: int) -> list[Outage]:
    """Return the outages of `ranks` nodes in the first `horizon_s` seconds of the trace, played `compress` times as
    fast.

    A trace that is too short repeats. If there are more ranks than nodes, further copies of the trace start at other
    times. Raises ValueError if there are too many.
    """
    turns = horizon_s / DAY_S * compress / trace.days
    _check_count(len(trace.outages) * ranks / trace.nodes * turns)
    dice, day_s, outages = Random(seed), DAY_S / compress, list[Outage]()
    names = sorted({node for node, _, _ in trace.outages})
    for copy in range(-(-ranks // trace.nodes)):
        places = dict(zip(names, dice.sample(range(trace.nodes), len(names)), strict=True))
        shift = dice.uniform(0, trace.days) if copy else 0.0
        for node, start, stop in trace.outages:
            rank = copy * trace.nodes + places[node]
            first = ((start + shift) % trace.days) * day_s
            while rank < ranks and first < horizon_s:
                outages.append(Outage(first, first + (stop - start) * day_s, rank))
                first += trace.days * day_s
    return sorted(outages)


def drawn(name: str, ranks: int, horizon_s: float, compress: float, seed: int) -> list[Outage]:
    """Return outages at a published rate: a Poisson process over all nodes; for `bursts`, gaps that scatter more, and
    some nodes that fail more often. Raises ValueError for an unknown name, or if there are too many."""
    if name not in RATES:
        raise ValueError(unknown("trace", name, RATES) + " (or give the path of a trace)")
    dice, day_s, outages, at = Random(seed), DAY_S / compress, list[Outage](), 0.0
    mean_s = 1000 * day_s / (RATES[name] * ranks)
    _check_count(horizon_s / mean_s)
    sigma = math.log(REPAIR_P90_D / REPAIR_MEDIAN_D) / 1.2815515655446004
    lemons = max(1, round(LEMONS * ranks))
    while (at := at + _gap(name, mean_s, dice)) < horizon_s:
        lemon = name == "bursts" and dice.random() < LEMONS_SHARE
        first = lemons if name == "bursts" and not lemon and lemons < ranks else 0
        rank = dice.randrange(first, lemons if lemon else ranks)
        outages.append(Outage(at, at + day_s * dice.lognormvariate(math.log(REPAIR_MEDIAN_D), sigma), rank))
    return outages


def _check_count(outages: float) -> None:
    """Raise ValueError if that many outages would not fit into memory."""
    if not outages <= MOST_OUTAGES:
        less = "give a smaller --compress, or fewer --ranks or --hours"
        raise ValueError(f"about {outages:.3g} failures are more than {MOST_OUTAGES:,}: {less}")


def _gap(name: str, mean_s: float, dice: Random) -> float:
    """Return the time to the next failure: exponential; for `bursts`, a mixture of two exponentials with balanced
    means."""
    if name != "bursts":
        return dice.expovariate(1 / mean_s)
    square = BURSTS_CV**2
    often = (1 + math.sqrt((square - 1) / (square + 1))) / 2
    part = often if dice.random() < often else 1 - often
    return dice.expovariate(2 * part / mean_s)


def with_spares(outages: Sequence[Outage], spares: int, replace_s: float) -> list[Outage]:
    """Return the times in which ranks have no machine, if `spares` take over within `replace_s`. A repaired machine
    becomes a spare. Without a spare, a rank waits for the next repair that no other rank waits for."""
    free, mended, absences = spares, list[float](), list[Outage]()
    until: dict[int, float] = {}
    for start, stop, rank in sorted(outages):
        if start < until.get(rank, -1.0):
            continue  # its machine is already being replaced
        while mended and mended[0] <= start:
            heapq.heappop(mended)
            free += 1
        heapq.heappush(mended, stop)
        if free:
            free, taken = free - 1, start
        else:
            taken = heapq.heappop(mended)
        until[rank] = taken + replace_s
        absences.append(Outage(start, until[rank], rank))
    return absences


def mean_gap(outages: Sequence[Outage], horizon_s: float) -> float:
    """Return the mean seconds between failures of any ranks; infinity without failures."""
    return horizon_s / len(outages) if outages else math.inf
