"""The picture of page one: quality against time to the target, with the Pareto frontier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.base.mode_styles import SOLO
from bench.base.style import brief
from bench.report.blocks import Picture
from bench.report.drawing.labels import SIZE, along, spots
from bench.report.measures.compare import in_points
from bench.report.page import Page
from bench.report.page_one.answer import Answer, Option
from bench.report.page_one.plane import Extent, Place, Point, clipped, edge_of, limits, ticks
from bench.report.page_one.words import compared, state
from bench.results.cells import Workload

NAMED = 5
"""Most points with names; if there are more, all points show the numbers of their table rows, which fit without
overlap."""
WRONG, TINT = "#cc3311", 0.07
"""Colour of failed points and of the area below the allowed quality, and the area's opacity."""
BESIDE = (0.86, 0.12, 0.5, 0.12)
"""Margins of the plot in inches: left, right, below, above."""
STEPS = 16
"""Points along a line that labels avoid."""


def points_of(each: Answer) -> list[Option]:
    """Return the ways of training that the picture shows."""
    return [option for option in each.options if option.time is not None and option.quality is not None]


def numbered(each: Answer) -> bool:
    """Return whether points show the numbers of their table rows instead of names."""
    return len(points_of(each)) > NAMED


def picture(page: Page, workload: Workload, each: Answer, name: str, inches: tuple[float, float]) -> Picture | None:
    """Draw quality against time to the target: each way of training as a point with its intervals, one device, the
    frontier and the allowed loss of quality. `inches`: width and height."""
    options = points_of(each)
    if not options:
        return None
    metric = workload.metric or "metric"
    scale, unit = (100.0, ", pt") if in_points(*(option.cell for option in options)) else (1.0, "")
    points = [Point.of(option, scale) for option in options]
    (width, height), (left, right, below, above) = inches, BESIDE
    figure = Figure(figsize=inches)
    figure.subplots_adjust(left / width, below / height, 1 - right / width, 1 - above / height)
    axes = figure.subplots()
    margin = _margin(options, scale)
    edge = _frame(axes, points, margin)
    for point in points:
        _draw(page, axes, point)
    axes.plot([1], [0], page.styles[SOLO][1], color=page.styles[SOLO][0], ms=7, zorder=3)
    plane = 72 * (width - left - right), 72 * (height - below - above)
    _name(page, axes, points, _names(each, points), plane, edge)
    axes.set_xlabel("time to target / one device's: left is sooner")
    axes.set_ylabel(f"{brief(metric, 20)} −\n{compared(options)}{unit}")
    if not options[0].cell.about.final.higher_is_better:  # better is up
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{-value + 0.0:g}"))
    data = [_datum(workload, option) for option in options]
    return page.figure(figure, name, data, "", caption(points, margin is not None, len(edge) > 1, numbered(each)))


def _margin(options: Sequence[Option], scale: float) -> float | None:
    """Return the allowed loss of quality, if it is the same for all options."""
    margins = {option.quality.margin for option in options if option.quality is not None and option.quality.margin}
    return scale * margins.pop() if len(margins) == 1 else None


def _frame(axes: Axes, points: Sequence[Point], margin: float | None) -> list[Place]:
    """Fit the axes to the intervals; draw the lines of one device, the allowed loss and the frontier; return the
    frontier."""
    x = [1.0, *(clipped(end) for p in points for end in p.x if end is not None)]
    y = [0.0, *(end for p in points for end in p.y if end is not None), *([-1.1 * margin] if margin else [])]
    axes.set_xscale("log")
    axes.set_xlim(*limits(x, logarithmic=True))
    axes.set_ylim(*limits(y, logarithmic=False))
    places = ticks(*axes.get_xlim())
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    axes.axhline(0, color="#999999", lw=0.8)
    axes.axvline(1, color="#999999", lw=0.8)
    if margin:
        axes.axhline(-margin, color=WRONG, lw=1.2)
        axes.axhspan(axes.get_ylim()[0], -margin, color=WRONG, alpha=TINT, lw=0)
    edge = edge_of(points)
    if len(edge) > 1:
        axes.plot(*zip(*edge, strict=True), "--", color="#666666", lw=1)
    return edge


def _draw(page: Page, axes: Axes, point: Point) -> None:
    """Draw a point and its intervals: hollow if it did not pass, crossed out if it failed, pale if its time is
    unreliable."""
    option = point.option
    colour, marker = page.styles[option.cell.about.mode]
    pale = 0.35 if option.disturbed or (option.time is not None and option.time.wide) else 0.75
    line: dict[str, Any] = {"color": colour, "alpha": pale}
    for bar, signs, open_ends in zip(bars(axes, point), ("|<>", "_v^"), (point.open_x, point.open_y), strict=True):
        if bar:
            axes.plot(*zip(*bar, strict=True), lw=1.0, **line)
        for end, arrow, is_open in zip(bar, signs[1:], open_ends, strict=False):
            axes.plot(*end, arrow if is_open else signs[0], ms=5, **line)
    axes.plot(
        *point.place, marker, color=colour, mfc=colour if option.passed else "none", mec=colour, ms=7, mew=1.4, zorder=3
    )
    if failed(option):
        axes.plot(*point.place, "x", color=WRONG, ms=10, mew=1.6, zorder=4)


def failed(option: Option) -> bool:
    """Return whether a verdict proves an error of the option."""
    return option.failing is not None and option.failing.name == "FAIL"


def bars(axes: Axes, p: Point) -> tuple[list[Place], list[Place]]:
    """Return the ends of the intervals of time and quality in the plot; unbounded ends lie at its edge; [] without an
    interval."""
    wide = _ends(p.x, axes.get_xlim(), clipped)
    tall = _ends(p.y, axes.get_ylim(), float)
    return [(end, p.place[1]) for end in wide], [(p.place[0], end) for end in tall]


def _ends(extent: Extent, edges: tuple[float, float], shown: Callable[[float], float]) -> list[float]:
    if extent.bare:
        return []
    return [edge if end is None else shown(end) for end, edge in zip((extent.low, extent.high), edges, strict=True)]


def _names(each: Answer, points: Sequence[Point]) -> list[str]:
    """Return the label of each point; numbers are those of the table rows."""
    if numbered(each):
        return [str(each.options.index(point.option) + 1) for point in points]
    short = len({point.option.cell.about.mode for point in points}) == len(points)
    names = [brief(p.option.cell.about.mode if short else p.option.cell.label, 28) for p in points]
    return [
        f"{name}: {state(point.option)}" if failed(point.option) else name
        for name, point in zip(names, points, strict=True)
    ]


def _name(
    page: Page, axes: Axes, points: Sequence[Point], names: Sequence[str], plane: Place, edge: Sequence[Place]
) -> None:
    """Label each point in its colour, without overlap, with a line to the point if the label is far from it."""
    labels = [("one device", (1.0, 0.0), page.styles[SOLO][0])]
    labels += [(n, p.place, page.styles[p.option.cell.about.mode][0]) for n, p in zip(names, points, strict=True)]
    onto = _onto(axes, plane)
    marks = [onto((1.0, 0.0)), *(onto(p.place) for p in points)]
    lines = [step for p in points for bar in bars(axes, p) for step in along([onto(end) for end in bar], STEPS)]
    lines += along([onto(place) for place in edge], STEPS)
    stand = spots([(text, onto(place)) for text, place, _ in labels], marks, plane, lines)
    for (text, place, colour), spot in zip(labels, stand, strict=True):
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 4}
        look: dict[str, Any] = {"fontsize": SIZE, "color": colour, "ha": spot.side}
        look |= {"weight": "bold"} if text.isdecimal() else {}
        arrow = leader if spot.moved else None
        axes.annotate(text, place, (spot.x, spot.y), textcoords="offset points", arrowprops=arrow, **look)


def _onto(axes: Axes, plane: Place) -> Callable[[Place], Place]:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()

    def onto(place: Place) -> Place:
        wide = math.log(place[0] / left) / math.log(right / left)
        return plane[0] * wide, plane[1] * (place[1] - low) / (high - low)

    return onto


def caption(points: Sequence[Point], limited: bool, dashed: bool, numbers: bool = False) -> str:
    """Return a caption of the elements that the picture has. `limited`: whether the allowed loss is drawn."""
    shown = {
        "Up and left is better": True,
        "Numbers: table rows": numbers,
        "Bars: 95 %": any(not p.x.bare or not p.y.bare for p in points),
        "Arrows: no end is known": any(any((*p.open_x, *p.open_y)) for p in points),
        "Hollow: quality not OK": any(not p.option.passed for p in points),
        "Red: not allowed": limited,
        "Dashed: best trade-offs": dashed,
    }
    return ". ".join(text for text, there in shown.items() if there)


def _datum(workload: Workload, option: Option) -> dict[str, Any]:
    assert option.time is not None
    assert option.quality is not None
    x, y = option.time, option.quality.difference
    return {
        "model": workload.model,
        "cell": option.cell.label,
        "passed": option.passed,
        "time": x.value,
        "time_low": x.low,
        "time_high": x.high,
        "quality": y.value,
        "quality_low": y.low,
        "quality_high": y.high,
    }
