"""The timeline as a picture: the whole run as fractions of time, and a part of it slice by slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.base.style import CATEGORIES as COLOURS
from bench.base.style import save_picture, some, styled
from bench.results.analysis.breakdown import CATEGORIES, absences, categories, within
from bench.results.analysis.idle import ABSENT
from bench.results.analysis.stream import Floats, RunRecords
from bench.timeline.about import Named

WIDTH, LEFT, TOP, ROW, BETWEEN, BELOW = 10.0, 0.95, 0.35, 0.42, 0.85, 0.5
"""Inches: width of the figure, margins left of and above the plots, height of a rank's row, space between the plots and
below."""
LEGEND: dict[str, Any] = {"loc": "upper right", "fontsize": 8.5, "borderaxespad": 0.0, "handlelength": 1.4}
BINS = 400
MOST_RANKS = 64
"""Most ranks that are drawn: the fastest, the slowest, and others evenly. No program opens a picture of a thousand."""
ZOOM = 28
"""Slices of a rank in the close-up, about two thirds of them before the synchronization that it shows."""


def draw(stream: RunRecords, spec: Named, path: Path) -> None:
    """Draw the run into `path` (PNG), if anything was measured."""
    ranks = list(stream.slices.by_rank)
    if not ranks:
        return
    bars, count = _bars(stream), len(ranks)
    ranks = some(ranks, MOST_RANKS, lambda rank: _length(bars, rank))
    bars = {place: bar for place, bar in bars.items() if place[0] in ranks}
    with styled():
        figure = Figure(figsize=(WIDTH, _height(len(ranks))))
        whole, close = _two(figure, len(ranks))
        shown = _whole(whole, bars, ranks, stream)
        shown |= _close(close, bars, ranks, stream.zero, _focus(stream))
        for axes in (whole, close):
            axes.set_yticks(range(len(ranks)), [_name(rank, spec) for rank in ranks])
            axes.set_ylim(len(ranks) - 0.5, -0.5)
            axes.grid(False)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
        handles = [Patch(color=COLOURS[name], label=name) for name in COLOURS if name in shown]
        top = 1 - 0.08 / _height(len(ranks))
        corner = (0.995, top)
        figure.legend(handles=handles, **LEGEND, bbox_to_anchor=corner, ncols=len(handles))
        shared = f" · {len(ranks)} of {count} ranks" if len(ranks) < count else ""
        title = f"{spec.model} · {spec.mode} · {spec.run_id}{shared}"
        figure.text(0.01, top - 0.05 / _height(len(ranks)), title, va="top", fontsize=10.5, weight="bold")
        save_picture(figure, path)


def _height(ranks: int) -> float:
    """Return the height of the figure, inches."""
    return TOP + 2 * (ROW * ranks + BETWEEN)


def _two(figure: Figure, ranks: int) -> tuple[Axes, Axes]:
    """Add the two plots, one above the other. Positions are computed here, as layout engines draw everything twice."""
    height, tall = _height(ranks), ROW * ranks
    bottoms = (BETWEEN + tall + BELOW, BELOW)
    first, second = (
        figure.add_axes((LEFT / WIDTH, bottom / height, 1 - (LEFT + 0.15) / WIDTH, tall / height)) for bottom in bottoms
    )
    return first, second


def _name(rank: int, spec: Named) -> str:
    speed = spec.speeds[rank] if rank < len(spec.speeds) else 1.0
    return f"rank {rank}" + (f"\n(speed {speed:g})" if speed != 1.0 else "")


Bars = dict[tuple[int, str], tuple[Floats, Floats]]
"""(rank, category) -> (starts, stops) in seconds, ascending."""


def _length(bars: Bars, rank: int) -> float:
    """Return the seconds that a rank computed."""
    starts, stops = bars.get((rank, "compute"), (np.zeros(0), np.zeros(0)))
    return float((stops - starts).sum())


def _bars(stream: RunRecords) -> Bars:
    """Return measured slices by rank and category, and when ranks were absent. An exchange is waiting until the last
    rank arrives, then communication."""
    s, wire = stream.slices, stream.slices.wire_start
    category = categories(s)
    bars: Bars = {}
    for rank, own in s.by_rank.items():
        for name in CATEGORIES:
            mine = own[within(category[own], (name,))]
            starts, stops = wire[mine], s.stop[mine]
            if name == "wait":
                late = own[wire[own] > s.start[own]]
                starts, stops = np.append(starts, s.start[late]), np.append(stops, wire[late])
            order = np.argsort(starts)
            if order.size:
                bars[rank, name] = starts[order], stops[order]
    end = max(stream.last_at.values())
    for rank, spans in absences(stream, max(s.by_rank) + 1).items():
        starts, stops = np.array(spans, np.float64).clip(max=end).T
        bars[rank, ABSENT] = starts, np.maximum(starts, stops)
    return bars


def _whole(axes: Axes, bars: Bars, ranks: list[int], stream: RunRecords) -> set[str]:
    """Stack the fractions of each category, for each rank and time slot. Returns the categories shown."""
    zero = stream.zero
    begin = min(float(starts[0]) for starts, _ in bars.values())
    end = max(stream.last_at.values())
    edges = np.linspace(begin, end, BINS + 1)
    for row, rank in enumerate(ranks):
        floor = np.full(BINS, row + 0.4)
        for name in COLOURS:
            if (rank, name) not in bars:
                continue
            top = floor - 0.8 * _share(edges, *bars[rank, name])
            outline = (np.repeat(edges - zero, 2)[1:-1], np.repeat(top, 2), np.repeat(floor, 2))
            axes.fill_between(*outline, color=COLOURS[name], lw=0)
            floor = top
    for rank, at in stream.drops.items():
        if rank in ranks:
            axes.plot([at - zero] * 2, np.array([-0.45, 0.45]) + ranks.index(rank), color="#cc0000", lw=1.6)
            look: dict[str, Any] = {"textcoords": "offset points", "color": "#cc0000", "va": "center"}
            axes.annotate("lost", (at - zero, ranks.index(rank)), (3, 0), **look)
    axes.set_xlim(begin - zero, end - zero)
    slot = (end - begin) / BINS
    axes.set_title(f"Whole run: shares of time in slots of {_duration(slot)}; blank: not measured")
    axes.set_xlabel("seconds since launch")
    return {name for _, name in bars}


def _share(edges: Floats, starts: Floats, stops: Floats) -> Floats:
    """Return the fraction of each slot that the (disjoint) intervals cover."""
    covered = np.repeat(np.concatenate([[0.0], np.cumsum(stops - starts)]), 2)[1:-1]
    times = np.stack([starts, stops], axis=1).ravel()
    share: Floats = np.diff(np.interp(edges, np.maximum.accumulate(times), covered)) / np.diff(edges)
    return np.clip(share, 0.0, 1.0)


def _focus(stream: RunRecords) -> tuple[float, float]:
    """Return the interval of the close-up: around the synchronization that is nearest to the middle of the run and has
    no evaluation near it; without synchronizations, around the middle."""
    s = stream.slices
    mine = s.places(int(s.rank.min()))
    meets = np.flatnonzero(np.isin(s.kind[mine], ["exchange", "copy"]))
    meets = meets if meets.size else np.arange(mine.size)
    for middle in meets[np.argsort(np.abs(meets - mine.size // 2), kind="stable")][:ZOOM].tolist():
        first = min(max(middle - ZOOM * 2 // 3, 0), max(mine.size - ZOOM, 0))
        chosen = mine[first : first + ZOOM]
        if "evaluate" not in s.kind[chosen]:
            break
    return float(s.start[chosen[0]]), float(s.stop[chosen[-1]])


def _close(axes: Axes, bars: Bars, ranks: list[int], zero: float, focus: tuple[float, float]) -> set[str]:
    begin, end = focus
    shown: set[str] = set()
    for (rank, name), (starts, stops) in bars.items():
        near = (stops > begin) & (starts < end)
        if near.any():
            pieces = [(1e3 * (a - begin), 1e3 * (b - a)) for a, b in zip(starts[near], stops[near], strict=True)]
            axes.broken_barh(pieces, (ranks.index(rank) - 0.4, 0.8), color=COLOURS[name], lw=0.4, edgecolor="white")
            shown.add(name)
    axes.set_xlim(0, 1e3 * (end - begin))
    axes.set_title(f"Close-up at {begin - zero:.2f} s: slice by slice")
    axes.set_xlabel("milliseconds")
    return shown


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms" if seconds >= 1e-3 else "under 1 ms"
