"""Learning curves: training loss over samples and the test metric over training seconds, two small plots for each
mode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.base.mode_styles import SOLO
from bench.base.number_format import is_fraction, plural
from bench.base.style import brief
from bench.report.blocks import Block, Picture
from bench.report.drawing.free_places import Place, Rectangle, track
from bench.report.drawing.labels import SIZE
from bench.report.drawing.small_plots import CORNER, PlotScale, grid, label
from bench.report.page import SERIES, CellGroup, Page
from bench.results.cells import Cell

Point = dict[str, Any]
"""One evaluated epoch of one seed; nan: not measured."""
NAME = 30
"""Most characters of the title of a plot."""
BELOW, ABOVE = 0.2, 0.06
"""Room below and above the curves of a plot, as fractions of what they span; a word fits below."""
GREY, REFERENCE = "#999999", "#666666"
"""Colours of the curves of other modes, and of solo."""

INTRO = (
    "Two plots for each mode, from the best final metric to the worst: coloured its own curve, dark grey solo's, pale the "
    "others'. One point per evaluated epoch: the mean of the seeds, with a band from the lowest to the highest. Dotted: the "
    "test loss. The clock stands still during evaluation."
)


def section(page: Page) -> list[Block]:
    """Return one figure for each workload and world size; solo is drawn in all of them."""
    return page.section("Learning curves", INTRO, _part, headed=False)


def _part(group: CellGroup) -> list[Block]:
    sizes = sorted({cell.about.world_size for cell in group.cells if not cell.is_solo}) or [1]
    blocks: list[Block] = []
    for size in sizes:
        shown = sorted((c for c in group.cells if c.is_solo or c.about.world_size == size), key=lambda c: not c.is_solo)
        if any(curve(cell) for cell in shown):
            blocks += group.draw(partial(_figure, size), shown, len(shown), "not in the figure")
    return blocks


def curve(cell: Cell) -> list[Point]:
    """Return a point for each evaluated epoch of each finished seed."""
    return [
        {
            "cell": cell.label,
            "seed": m.seed,
            "epoch": row.epoch,
            "samples": row.samples,
            "seconds": row.seconds if m.timing else math.nan,
            "loss": math.nan if row.train_loss is None else row.train_loss,
            "metric": row.eval,
            "test_loss": math.nan if row.eval_loss is None else row.eval_loss,
            "train_metric": math.nan if (known := row.scalars.get(m.final.eval_metric)) is None else known,
        }
        for m in cell.one_each
        for row in m.epochs
        if row.eval is not None
    ]


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = _known(values)
    return sum(known) / len(known) if known else math.nan


class CurveLine(NamedTuple):
    """The curve of a cell, an entry for each epoch: `x`, the mean over seeds `y`, the lowest and the highest seed, and
    the mean of the dotted quantity."""

    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]
    dotted: list[float]

    @property
    def places(self) -> list[Place]:
        """The points (x, y) of the curve that are not nan."""
        return [place for place in zip(self.x, self.y, strict=True) if not any(map(math.isnan, place))]

    @property
    def last(self) -> str:
        """The last value of the curve as text; empty if it has none."""
        return f"{self.places[-1][1]:#.3g}".rstrip(".") if self.places else ""


@dataclass(frozen=True)
class CurvePlot:
    """The quantities of a plot and its scales, which are the same for all modes."""

    x: str
    y: str
    label: str
    fraction: bool = False
    """Whether to plot the error rate, 1 − metric, in per cent: on a logarithmic axis good results can be told apart."""
    dotted: str = ""
    """Key of the same quantity measured on the test data; empty: none."""

    def line(self, points: Sequence[Point]) -> CurveLine:
        """Return the curve of a cell, with a band where several seeds have a point."""
        by_epoch = [[p for p in points if p["epoch"] == epoch] for epoch in sorted({p["epoch"] for p in points})]
        values = [_known(self._value(p[self.y]) for p in seeds) for seeds in by_epoch]
        low, high = ([end(each, default=math.nan) for each in values] for end in (min, max))
        x, dotted = (
            [mean(p.get(name, math.nan) for p in seeds) for seeds in by_epoch] for name in (self.x, self.dotted)
        )
        return CurveLine(x, [mean(each) for each in values], low, high, dotted)

    def _value(self, value: float) -> float:
        return 100 * (1 - value) if self.fraction else value

    def scale(self, lines: Sequence[CurveLine]) -> PlotScale:
        """Return the axes that contain all curves."""
        y = _known(value for line in lines for part in line[1:] for value in part)
        low, high = min(y), max(y)
        log = (self.y == "loss" or self.fraction) and 0 < low < high
        span = math.log(high / low) if log else high - low or abs(high) or 1.0
        below, above = BELOW * span, ABOVE * span
        low, high = (low * math.exp(-below), high * math.exp(above)) if log else (low - below, high + above)
        most = max(_known(value for line in lines for value in line.x), default=0.0) or 1.0
        return PlotScale(1.03 * most, low, high, log, "samples trained" if self.x == "samples" else "training seconds")


class CurveSeries(NamedTuple):
    """The evaluated epochs of a way of training, over its seeds."""

    name: str
    seeds: int
    points: list[Point]
    style: tuple[str, str]
    """Colour and marker."""


def _figure(size: int, group: CellGroup, whole: list[Cell]) -> Picture:
    page, shown = group.page, [(cell, curve(cell)) for cell in whole[:SERIES]]
    data = [point for _, points in shown for point in points]
    shown = [(cell, points) for cell, points in shown if points]
    series = {
        cell.label: CurveSeries(cell.label, cell.eval.n, points, page.styles[cell.about.mode]) for cell, points in shown
    }
    world = f" on {plural(size, 'rank')}" if size > 1 else ""
    reference = shown[0][0] if shown[0][0].is_solo and len(shown) > 1 else None
    each = [series[cell.label] for cell in _ranked([cell for cell, _ in shown if cell is not reference])]
    title, metric = f"{group.title}{world}", shown[0][0].about.final.eval_metric
    figure, alt = figure_of(title, metric, each, series[reference.label] if reference else None)
    return page.figure(figure, f"{group.slug('curves')}-w{size}", data, "", alt)


def figure_of(
    title: str, metric: str, each: Sequence[CurveSeries], reference: CurveSeries | None
) -> tuple[Figure, str]:
    """Return two small plots for each way of training, `reference` in all of them, and what they show in words."""
    shown = [*([reference] if reference else []), *each]
    data = [point for series in shown for point in series.points]
    values = [point["metric"] for point in data]
    fraction = is_fraction(metric, values) and all(value < 1 for value in values)
    timed = any(not math.isnan(point["seconds"]) for point in data)
    plots = [
        CurvePlot("samples", "loss", "training loss", dotted="test_loss"),
        CurvePlot(
            "seconds" if timed else "samples",
            "metric",
            f"test error (1 − {metric}), %" if fraction else f"test {metric}",
            fraction,
        ),
    ]
    plots = [plot for plot in plots if any(_known(p[plot.y] for p in series.points) for series in shown)]
    figure, plane = grid(title, len(each) * len(plots))
    for column, plot in enumerate(plots):
        lines = {series.name: plot.line(series.points) for series in shown}
        scale = plot.scale(list(lines.values()))
        solo = lines[reference.name] if reference else None
        for row, series in enumerate(each):
            axes = plane[len(plots) * row + column]
            scale.set(axes)
            rest = [lines[other.name] for other in each if other is not series]
            _title(axes, f"{brief(series.name, NAME - 5)}, n={series.seeds}", plot, series.style[0])
            _draw(axes, scale, lines[series.name], solo, rest, series.style)
    shows = " and ".join(f"{plot.label} by {plot.x}" for plot in plots)
    return figure, f"{shows[0].upper()}{shows[1:]}, for each mode, of {title}"


def _ranked(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells in the order of their final metric, best first."""
    sign = -1.0 if cells[0].about.final.higher_is_better else 1.0
    return sorted(cells, key=lambda cell: (cell.eval.mean is None, sign * (cell.eval.mean or 0.0)))


def _title(axes: Axes, name: str, plot: CurvePlot, colour: str) -> None:
    """Write two lines above a plot: the mode, in the colour of its curve, and the plotted quantity."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    left = -72 * CORNER[0] + 4
    axes.annotate(brief(name, NAME), (0, 1), (left, 15), fontsize=SIZE, color=colour, weight="bold", **place)
    axes.annotate(brief(plot.label, NAME), (0, 1), (left, 4), fontsize=SIZE, **place)


def _draw(
    axes: Axes,
    scale: PlotScale,
    own: CurveLine,
    solo: CurveLine | None,
    rest: Sequence[CurveLine],
    style: tuple[str, str],
) -> None:
    """Draw the curve of a mode above those of the others. The others are a single path, so that a figure of many plots
    stays small."""
    colour, marker = style
    x, y = ([value for line in rest for value in (*line[part], math.nan)] for part in (0, 1))
    axes.plot(x, y, color=GREY, alpha=0.4, lw=0.8)
    axes.fill_between(own.x, own.low, own.high, color=colour, alpha=0.2, lw=0)
    if solo is not None:
        axes.plot(solo.x, solo.y, color=REFERENCE, lw=1.3)
    if _known(own.dotted):
        axes.plot(own.x, own.dotted, ":", color=colour, lw=1.1)
    axes.plot(own.x, own.y, marker=marker, markevery=max(1, len(own.x) // 10), ms=3, color=colour, lw=1.8)
    path, other, dotted, *pale = (
        track([scale.onto(place) for place in line.places]) if line else track([])
        for line in (own, solo, own._replace(y=own.dotted), *rest)
    )
    taken: list[Rectangle] = []
    label(axes, own.last, path[-1:], path, other, [dotted, *pale], taken, {"color": colour, "weight": "bold"})
    label(axes, SOLO, other, other, path, [dotted, *pale], taken, {"color": REFERENCE})
