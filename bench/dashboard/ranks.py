"""The table of ranks with their speeds, as plain data for JSON. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from bench.results.live.curves import DIGITS, Json, ratio, short
from bench.results.live.history import RunHistory
from bench.results.live.run import RankFigures
from bench.results.live.series import TimeBin
from bench.results.schema import Metrics

ALIKE = 0.05
"""Relative difference below which two speeds count as equal."""


class PaceOver(NamedTuple):
    """The speeds of all ranks over the same time."""

    over: str | None
    """That time, in words; None: nothing is known yet."""
    rates: dict[int, float]
    """Rank -> samples per second, as shown."""
    cells: dict[int, TimeBin]

    @property
    def rate(self) -> float | None:
        """Samples per second of all ranks: the sum of the rounded rates shown."""
        return round(sum(self.rates.values()), 6) if self.rates else None


def pace(history: RunHistory, size: int, metrics: Metrics | None) -> PaceOver:
    """Return the speed of a run: over its whole training if it has a result, else recently, up to the last moment for
    which all training ranks have reported."""
    if metrics is not None:
        cells = {number: _within(history, number, 0.0, math.inf) for number in range(size)}
        speeds = dict(enumerate(metrics.throughput.per_rank)) if metrics.throughput.samples_per_s is not None else {}
        over = f"over {metrics.time_s.train:.1f} s of training" if speeds else None
        return PaceOver(over, _shown(speeds), cells)
    span = _span(history, size)
    if span is None or not history.run.counted:
        return PaceOver(None, {}, {number: _within(history, number, 0.0, math.inf) for number in _live(history, size)})
    begin, end = span
    cells = {number: _within(history, number, begin, end) for number in _live(history, size)}
    rates = {number: cell.samples / (end - begin) for number, cell in cells.items()}
    return PaceOver(f"from {begin:.1f} to {end:.1f} s", _shown(rates), cells)


def _shown(rates: dict[int, float]) -> dict[int, float]:
    """Round the rates as they are shown, so that their sum fits; leave out NaN."""
    known = {number: rate for number, rate in rates.items() if math.isfinite(rate)}
    return {n: float(round(rate)) if rate >= 1000 else float(f"{rate:.{DIGITS}g}") for n, rate in known.items()}


def _live(history: RunHistory, size: int) -> list[int]:
    return [number for number in range(size) if number in history.run.ranks and history.run.ranks[number].lost is None]


def _span(history: RunHistory, size: int) -> tuple[float, float] | None:
    """Return the begin and end of the last bins that all training ranks have reported: 8 bins, or a sixth of the
    run."""
    ranks = [history.run.ranks[number] for number in _live(history, size)]
    if history.run.began is None or not ranks:
        return None
    ends = [rank.reported for rank in ranks if not rank.finished]
    end = history.run.since(min(ends) if ends else max(rank.reported for rank in ranks))
    begin = max(history.run.since(history.run.began), end - history.series.width * max(8, history.series.length // 6))
    return (begin, end) if end > begin else None


def _within(history: RunHistory, rank: int, begin: float, end: float) -> TimeBin:
    """Return the work of a rank from `begin` to `end`, seconds, but none from before the run was resumed; bins that reach
    beyond count in part."""
    width, total, run = history.series.width, TimeBin(), history.run
    if run.began is None or begin <= run.since(run.began):  # nothing was trained between launch and then
        begin = 0.0 if run.resumed is None else run.since(run.resumed.at)
    first = int(begin / width)
    for index, cell in enumerate(history.series.ranks.get(rank, ())[first:], first):
        inside = min(end, (index + 1) * width) - max(begin, index * width)
        if inside <= 0:
            break
        covered = cell.seconds or cell.used_s
        total = total.plus(cell.times(min(inside / covered, 1.0) if covered > 0 else 1.0))
    return total


def ranks(history: RunHistory, size: int, metrics: Metrics | None = None) -> list[Json]:
    """Return a row for each rank. `mark` marks the fastest and slowest training ranks, if their speeds differ."""
    paced = pace(history, size, metrics)
    live = _live(history, size)
    speeds = {
        number: speed
        for number, cell in paced.cells.items()
        if number in live and history.run.counted and (speed := ratio(cell.samples, cell.busy_s)) is not None
    }
    marks: dict[int, str] = {}
    if len(speeds) > 1 and max(speeds.values()) > min(speeds.values()) * (1 + ALIKE):
        marks = {min(speeds, key=speeds.__getitem__): "slowest", max(speeds, key=speeds.__getitem__): "fastest"}
    rows = []
    for number in range(size):
        rank, cell = history.run.ranks.get(number, RankFigures()), paced.cells.get(number, TimeBin())
        rate = paced.rates.get(number)
        rows.append(
            {
                "rank": number,
                "state": _standing(rank, history.run.plan is not None and number not in history.run.ranks),
                "mark": marks.get(number),
                "device": come.device if (come := rank.joining or rank.ready) else None,
                "loader": rank.ready.loader if rank.ready else None,
                "lost_s": short(history.run.since(rank.lost)) if rank.lost is not None else None,
                "epoch": rank.epoch if rank.epoch >= 0 else None,
                "steps": rank.steps,
                "samples": rank.samples if history.run.counted else None,
                "samples_per_s": rate,
                "share": None if rate is None else short(ratio(rate, paced.rate or 0.0)),
                "step_ms": short(ratio(cell.busy_s * 1e3, cell.steps)),
                "speed": short(speeds.get(number)),
                "cpu": short(ratio(cell.cpu_s, cell.used_s)),
                "rss_bytes": rank.rss_bytes or None,
                "peak_rss_bytes": rank.peak_rss_bytes or None,
            }
        )
    return rows


def _standing(rank: RankFigures, absent: bool) -> str:
    """Return the state of a rank. `absent`: the others have begun without it, and it has not joined yet."""
    if absent:
        return "absent"
    if rank.lost is not None:
        return "lost"
    if rank.finished:
        return "finished"
    return "training" if rank.epoch >= 0 else "ready" if rank.ready or rank.joining else "starting"
