"""What ranks do: the table of them and their curves over time, as plain data for JSON. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from bench.dashboard.series import TimeBin
from bench.dashboard.state import DashboardState, RankView
from bench.results.schema import Metrics

Json = dict[str, Any]
DIGITS = 4
ALIKE = 0.05
"""Ranks whose speeds differ by less are as fast as each other."""


class PaceOver(NamedTuple):
    """What ranks did, all over the same time."""

    over: str | None
    """Which, in words; None: nothing is known yet."""
    rates: dict[int, float]
    """Rank -> samples per second, as shown."""
    cells: dict[int, TimeBin]

    @property
    def rate(self) -> float | None:
        """Of all ranks: the sum of what is shown of each."""
        return round(sum(self.rates.values()), 6) if self.rates else None


def pace(state: DashboardState, size: int, metrics: Metrics | None) -> PaceOver:
    """Of a run with a result, over its training; else of late, until the last moment that all who train have told of."""
    if metrics is not None:
        cells = {number: _within(state, number, 0.0, math.inf) for number in range(size)}
        told = dict(enumerate(metrics.throughput.per_rank)) if metrics.throughput.samples_per_s is not None else {}
        over = f"over {metrics.time_s.train:.1f} s of training" if told else None
        return PaceOver(over, _shown(told), cells)
    span = _span(state, size)
    if span is None:
        return PaceOver(None, {}, {number: _within(state, number, 0.0, math.inf) for number in _live(state, size)})
    begin, end = span
    cells = {number: _within(state, number, begin, end) for number in _live(state, size)}
    rates = {number: cell.samples / (end - begin) for number, cell in cells.items()}
    return PaceOver(f"from {begin:.1f} to {end:.1f} s", _shown(rates), cells)


def _shown(rates: dict[int, float]) -> dict[int, float]:
    """Rounded as they are read, so that the sum is that of what is read; without what is no number."""
    known = {number: rate for number, rate in rates.items() if math.isfinite(rate)}
    return {n: float(round(rate)) if rate >= 1000 else float(f"{rate:.{DIGITS}g}") for n, rate in known.items()}


def _live(state: DashboardState, size: int) -> list[int]:
    return [number for number in range(size) if number in state.ranks and state.ranks[number].lost is None]


def _span(state: DashboardState, size: int) -> tuple[float, float] | None:
    """The last stretches of which all have told that still train: 8 of them, or a sixth of the run."""
    ranks = [state.ranks[number] for number in _live(state, size)]
    if state.began is None or not ranks:
        return None
    ends = [rank.reported for rank in ranks if not rank.finished]
    end = state.since(min(ends) if ends else max(rank.reported for rank in ranks))
    begin = max(state.since(state.began), end - state.series.width * max(8, state.series.length // 6))
    return (begin, end) if end > begin else None


def _within(state: DashboardState, rank: int, begin: float, end: float) -> TimeBin:
    """What a rank did from `begin` to `end`, seconds; of stretches that reach beyond, a part."""
    width, total = state.series.width, TimeBin()
    if state.began is None or begin <= state.since(state.began):
        begin = 0.0  # before that nothing was trained, so there is nothing to be left out
    first = int(begin / width)
    for index, cell in enumerate(state.series.ranks.get(rank, ())[first:], first):
        inside = min(end, (index + 1) * width) - max(begin, index * width)
        if inside <= 0:
            break
        covered = cell.seconds or cell.used_s
        total = total.plus(cell.times(min(inside / covered, 1.0) if covered > 0 else 1.0))
    return total


def ranks(state: DashboardState, size: int, metrics: Metrics | None = None) -> list[Json]:
    """Each rank, the fastest and the slowest of those that train marked by `mark`, where their speeds differ."""
    paced = pace(state, size, metrics)
    live = _live(state, size)
    speeds = {
        number: speed
        for number, cell in paced.cells.items()
        if number in live and (speed := ratio(cell.samples, cell.busy_s)) is not None
    }
    marks: dict[int, str] = {}
    if len(speeds) > 1 and max(speeds.values()) > min(speeds.values()) * (1 + ALIKE):
        marks = {min(speeds, key=speeds.__getitem__): "slowest", max(speeds, key=speeds.__getitem__): "fastest"}
    rows = []
    for number in range(size):
        rank, cell = state.ranks.get(number, RankView()), paced.cells.get(number, TimeBin())
        rate = paced.rates.get(number)
        rows.append(
            {
                "rank": number,
                "state": _standing(rank),
                "mark": marks.get(number),
                "device": rank.ready.device if rank.ready else None,
                "loader": rank.ready.loader if rank.ready else None,
                "lost_s": short(state.since(rank.lost)) if rank.lost is not None else None,
                "epoch": rank.epoch if rank.epoch >= 0 else None,
                "steps": rank.steps,
                "samples": rank.samples,
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


def _standing(rank: RankView) -> str:
    if rank.lost is not None:
        return "lost"
    if rank.finished:
        return "finished"
    return "training" if rank.steps else "ready" if rank.ready else "starting"


def curves(state: DashboardState) -> Json:
    """By rank what it did over time, one value for each stretch of `width_s`; and of all together, as rank `all`."""
    series = state.series
    columns = {
        number: list(cells) + [TimeBin()] * (series.length - len(cells))
        for number, cells in sorted(series.ranks.items())
    }
    together = [_together(cells) for cells in zip(*columns.values(), strict=True)]
    sums = [cell.samples for cell in together]
    seen, epochs = 0.0, []
    per_epoch = next((rank.ready.samples for rank in state.ranks.values() if rank.ready), 0)
    for samples in sums:
        epochs.append(short(ratio(seen + samples / 2, per_epoch)))
        seen += samples
    lines = {str(number): _lines(column, sums) for number, column in columns.items()}
    lines["all"] = {name: _lines(together, sums)[name] for name in ("loss", "samples_per_s")}
    return {"width_s": series.width, "epoch": epochs, "ranks": lines}


def _together(cells: tuple[TimeBin, ...]) -> TimeBin:
    total = TimeBin()
    for cell in cells:
        total = total.plus(cell)
    return total._replace(seconds=max(cell.seconds for cell in cells))  # time does not add up over ranks


def _lines(cells: list[TimeBin], sums: list[float]) -> dict[str, list[float | None]]:
    return {
        "loss": [short(ratio(c.loss_sum, c.samples)) for c in cells],
        "samples_per_s": [short(ratio(c.samples, c.seconds)) for c in cells],
        "share": [short(ratio(c.samples, total)) for c, total in zip(cells, sums, strict=True)],
        "step_ms": [short(ratio(c.busy_s * 1e3, c.steps)) for c in cells],
        "cpu": [short(ratio(c.cpu_s, c.used_s)) for c in cells],
        "gpu": [short(ratio(c.gpu_s, c.gpu_used_s)) for c in cells],
        "rss_bytes": [round(c.rss) or None for c in cells],
        "device_bytes": [round(c.device) or None for c in cells],
    }


def ratio(total: float, count: float) -> float | None:
    """`total / count`; None where nothing was counted, or what was is not finite."""
    return total / count if count > 0 and math.isfinite(total) else None


def short(value: float | None) -> float | None:
    """Rounded to `DIGITS` significant digits."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")
