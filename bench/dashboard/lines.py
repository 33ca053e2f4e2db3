"""What ranks do: the table of them and their curves over time, as plain data for JSON. Pure."""

from __future__ import annotations

import math
from typing import Any

from bench.dashboard.series import Cell
from bench.dashboard.state import Rank, State

Json = dict[str, Any]
DIGITS = 4
ALIKE = 0.05
"""Ranks whose speeds differ by less are as fast as each other."""


def ranks(state: State, size: int) -> list[Json]:
    """Each rank, the fastest and the slowest of those that train marked by `mark`, where their speeds differ."""
    speeds = {number: speed for number in range(size) if (speed := _speed(state, number)) is not None}
    marks: dict[int, str] = {}
    if len(speeds) > 1 and max(speeds.values()) > min(speeds.values()) * (1 + ALIKE):
        marks = {min(speeds, key=speeds.__getitem__): "slowest", max(speeds, key=speeds.__getitem__): "fastest"}
    live = [number for number in range(size) if state.ranks.get(number, Rank()).lost is None]
    latest = {number: _latest(state, number) if number in live else Cell() for number in range(size)}
    cohort = sum(cell.samples for cell in latest.values())
    rows = []
    for number in range(size):
        rank, cell = state.ranks.get(number, Rank()), latest[number]
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
                "samples_per_s": short(ratio(cell.samples, cell.seconds)),
                "share": short(ratio(cell.samples, cohort)) if rank.lost is None else None,
                "step_ms": short(ratio(cell.busy_s * 1e3, cell.steps)),
                "speed": short(speeds.get(number)),
                "cpu": short(ratio(cell.cpu_s, cell.used_s)),
                "rss_bytes": rank.rss_bytes or None,
                "peak_rss_bytes": rank.peak_rss_bytes or None,
            }
        )
    return rows


def _standing(rank: Rank) -> str:
    if rank.lost is not None:
        return "lost"
    if rank.finished:
        return "finished"
    return "training" if rank.steps else "ready" if rank.ready else "starting"


def _latest(state: State, rank: int) -> Cell:
    """What a rank did in the last stretches in which it reported: 8 of them, or a sixth of the run."""
    cells = [cell for cell in state.series.ranks.get(rank, ()) if cell.seconds > 0 or cell.used_s > 0]
    total = Cell()
    for cell in cells[-max(8, len(cells) // 6) :]:
        total = total.plus(cell)
    return total


def _speed(state: State, rank: int) -> float | None:
    """Samples per busy second of late; None of a rank that is lost, or has not trained."""
    cell = _latest(state, rank)
    return ratio(cell.samples, cell.busy_s) if state.ranks.get(rank, Rank()).lost is None else None


def curves(state: State) -> Json:
    """By rank what it did over time, one value for each stretch of `width_s`; and of all together, as rank `all`."""
    series = state.series
    columns = {
        number: list(cells) + [Cell()] * (series.length - len(cells)) for number, cells in sorted(series.ranks.items())
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


def _together(cells: tuple[Cell, ...]) -> Cell:
    total = Cell()
    for cell in cells:
        total = total.plus(cell)
    return total._replace(seconds=max(cell.seconds for cell in cells))  # time does not add up over ranks


def _lines(cells: list[Cell], sums: list[float]) -> dict[str, list[float | None]]:
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
