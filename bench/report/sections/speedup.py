"""The figure of speed-up by number of ranks and its table columns, shared by weak and strong scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from bench.report.blocks import Picture
from bench.report.measures.compare import Rival
from bench.report.measures.timing import Timing
from bench.report.page import SERIES, Page, percent, speeds, times
from bench.report.page_one.scaling_series import dashes, reachable, spanned, way_of

CORE_LIMIT = "most that cores allow"
MANY = 8
"""The axis of the numbers of ranks is logarithmic if the largest is at least this."""


@dataclass(frozen=True)
class SpeedupPoint:
    """The speed-up of a cell over one rank."""

    mode: str
    way: str
    """The mode, and the settings that distinguish this way of training from others of the mode."""
    ranks: int
    n: int
    speedup: float
    spread: float | None
    """Standard deviation of the speed-up over the seeds; None if a side has fewer than two."""

    @staticmethod
    def of(rival: Rival) -> SpeedupPoint | None:
        """Return the point of a cell; None if its speed-up is unknown."""
        cell, solo, value = rival.cell, rival.solo, rival.speedup
        if value is None or solo is None:
            return None
        speeds_of = [Timing.of(side).speed for side in (cell, solo)]
        known = [(s.sd / s.mean) ** 2 for s in speeds_of if s.sd is not None and s.mean]
        spread = value * sum(known) ** 0.5 if len(known) == 2 and cell is not solo else None
        return SpeedupPoint(cell.about.mode, way_of(cell), cell.about.world_size, speeds_of[0].n, value, spread)


def serial_fraction(speedup: float | None, ranks: float) -> float | None:
    """Return the serial fraction of Karp and Flatt (1990), (1/S − 1/N) / (1 − 1/N): the part of the work that does not
    scale. Negative if the speed-up exceeds the ideal; None for one rank."""
    if not speedup or ranks <= 1:
        return None
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


def columns(rival: Rival, heading: str, bound: float, **beside: str) -> dict[str, str]:
    """Return the columns that the tables of weak and strong scaling share. `bound`: the ideal speed-up. `beside`:
    further columns, placed after the speed-up."""
    speedup, speed = rival.speedup, Timing.of(rival.cell).speed
    return {
        "n": str(speed.n),
        "samples/s": speeds(speed),
        heading: times(speedup),
        **beside,
        "speed-up / ideal": percent(None if speedup is None else speedup / bound),
        "serial": times(serial_fraction(speedup, bound)),
    }


def draw(page: Page, rows: list[Rival], name: str, title: str, cores: int | None) -> Picture | None:
    """Draw the speed-up with the ideal line on the left, and its share of the ideal on the right. Returns None if
    nothing ran on more than one rank."""
    places = {mode: place for place, mode in enumerate(page.styles)}
    points = [point for rival in rows if (point := SpeedupPoint.of(rival)) is not None]
    known = sorted({(p.mode, p.way) for p in points if p.ranks > 1}, key=lambda pair: (places[pair[0]], pair[1]))
    ways = {way: mode for mode, way in known[:SERIES]}
    if not ways:
        return None
    sizes = sorted({1, *(point.ranks for point in points)})
    figure = Figure(figsize=(10.5, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([1, sizes[-1]], [1, sizes[-1]], color="#333333", lw=1.2, ls=(0, (4, 2)), label="ideal")
    right.axhline(100, color="#333333", lw=1.2, ls=(0, (4, 2)))
    dash = dashes(ways)
    for place, (way, mode) in enumerate(ways.items()):
        mine = {1: SpeedupPoint(mode, way, 1, 0, 1.0, None), **{p.ranks: p for p in points if p.way == way}}
        line = [mine.get(size, SpeedupPoint(mode, way, size, 0, math.nan, None)) for size in spanned(mine, sizes)]
        colour, marker = page.styles[mode]
        x, y = np.array([p.ranks for p in line]), np.array([p.speedup for p in line])
        error = np.array([p.spread or 0.0 for p in line])
        aside = 0.012 * (sizes[-1] - 1) * (place - len(ways) / 2) * (x > 1)  # so that error bars show
        look: dict[str, Any] = {"color": colour, "marker": marker, "ls": dash[way], "ms": 5.0, "capsize": 2.5}
        left.errorbar(x + aside, y, error, label=way, **look)
        right.errorbar(x + aside, 100 * y / x, 100 * error / x, **look)
    for axes in (left, right):
        mark_sizes(axes, sizes)
        axes.set_xlabel("ranks")
        axes.set_ylim(bottom=0)
    limited = cores is not None and cores < sizes[-1]
    if cores is not None and limited:
        draw_core_limit(left, *reachable(sizes[-1], cores), label=CORE_LIMIT)
        beyond = np.linspace(cores, sizes[-1], 20)
        draw_core_limit(right, beyond, 100 * cores / beyond)
    left.set_title("Speed-up over one rank (samples per second)")
    right.set_title("% of the ideal")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    alt = f"Speed-up over one rank and its share of the ideal, by mode, on {', '.join(map(str, sizes))} ranks: {title}"
    alt += f". Grey: more ranks than the {cores} cores, where 100 % is out of reach" if limited else ""
    return page.figure(figure, name, [_data(point) for point in points], title, alt)


def mark_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    """Label the numbers of ranks on the horizontal axis, which is logarithmic if the largest is at least `MANY`."""
    if sizes[-1] >= MANY:
        axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)


def draw_core_limit(axes: Axes, ranks: ArrayLike, most: ArrayLike, label: str | None = None) -> None:
    """Shade the range of `ranks` that exceeds the number of cores, and draw `most`, the limit that the cores set there.
    `ranks` and `most` have one shape."""
    numbers = np.asarray(ranks)
    axes.axvspan(numbers[0], numbers[-1], color="#999999", alpha=0.15, lw=0)
    axes.plot(ranks, most, color="#333333", lw=1.6, ls=":", label=label)


def _data(p: SpeedupPoint) -> dict[str, Any]:
    point = {"mode": p.way, "world_size": p.ranks, "n": p.n, "speedup": p.speedup, "speedup_sd": p.spread}
    return point | {"ideal": p.ranks, "serial_fraction": serial_fraction(p.speedup, p.ranks)}
