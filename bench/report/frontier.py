"""The picture of page one: quality against time to the target, and what no other way is both sooner and better than."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.base.style import SOLO, brief
from bench.report.answer import Answer, Option
from bench.report.blocks import Picture, plain
from bench.report.compare import is_fraction
from bench.report.labels import along, spots
from bench.report.page import Page, listed
from bench.results.cells import Workload

LABELS = 5
"""Points that have a name, at most."""


def points_of(each: Answer) -> list[Option]:
    """Return the ways of training that have a place in the picture."""
    return [option for option in each.options if option.time is not None and option.quality is not None]


def picture(page: Page, answers: Sequence[tuple[Workload, Answer]]) -> Picture | None:
    """Draw quality against time to the target: every mode a point with its interval, one device, the frontier."""
    if not answers:
        return None
    columns = min(len(answers), 2)
    rows = math.ceil(len(answers) / 2)
    figure = Figure(figsize=(5.0 * columns, (3.0 if columns == 1 else 2.6) * rows), layout="constrained")
    data: list[dict[str, Any]] = []
    plane = 72 * 4.0, 72 * (2.3 if columns == 1 else 1.9)  # about: what is beside the axes is not laid out yet
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[len(answers) :]:
        axes.set_visible(False)
    for axes, (workload, each) in zip(grid, answers, strict=False):
        points = points_of(each)
        metric = workload.metric or "metric"
        scale, unit = (100.0, ", points") if is_fraction(metric) else (1.0, "")
        _plane(page, axes, points, scale, LABELS if len(answers) == 1 else 2, each.chosen, plane)
        axes.set_xlabel("time to target / one device's: left is sooner")
        axes.set_ylabel(f"{brief(metric, 24)}{unit}: up is better")
        axes.set_title(brief(workload.model, 24) if len(answers) > 1 else "")
        data += [_datum(workload, option) for option in points]
    if any(len(points_of(each)) > LABELS for _, each in answers) or len(answers) > 1:
        _legend(page, figure, [option.cell.about.mode for _, each in answers for option in points_of(each)])
    modes = listed(plain(workload.model) for workload, _ in answers)
    alt = (
        f"Quality against time to the target, over one device's, of {modes}. Thin lines: 95 % intervals. Dashed: nothing is "
        "both sooner and better"
    )
    return page.figure(figure, "answer", data, "", alt)


def _plane(
    page: Page,
    axes: Axes,
    points: list[Option],
    scale: float,
    labels: int,
    chosen: Option | None,
    plane: tuple[float, float],
) -> None:
    axes.axhline(0, color="#999999", lw=0.8)
    axes.axvline(1, color="#999999", lw=0.8)
    places = [(o.time.value, scale * o.quality.difference.value) for o in points if o.time and o.quality]
    edge = frontier(places)
    at_edge = [k for k, option in enumerate(points) if k in edge or option is chosen]
    named = sorted(at_edge, key=lambda k: points[k] is not chosen)[:labels]
    if len(points) <= labels:
        named = list(range(len(points)))
    for k, option in enumerate(points):
        assert option.time is not None
        assert option.quality is not None
        colour, marker = page.styles[option.cell.about.mode]
        x, y = option.time, option.quality.difference
        wide = None if x.low is None or x.high is None else [[x.value - x.low], [x.high - x.value]]
        tall = None if y.low is None or y.high is None else [[scale * (y.value - y.low)], [scale * (y.high - y.value)]]
        axes.errorbar([places[k][0]], [places[k][1]], tall, wide, fmt="none", ecolor=colour, elinewidth=0.9, alpha=0.35)
        axes.plot([places[k][0]], [places[k][1]], marker, color=colour, ms=6)
    axes.plot(*zip(*[places[k] for k in edge], strict=True), "--", color="#666666", lw=1)
    axes.plot([1], [0], "D", color=page.styles.get(SOLO, ("#000000", "o"))[0], ms=7)
    _zoom(axes, [(1.0, 0.0), *places])
    labelled = [("one device", (1.0, 0.0)), *((brief(points[k].cell.label), places[k]) for k in named)]
    _name(axes, labelled, [(1.0, 0.0), *places], [places[k] for k in edge], plane)


def _legend(page: Page, figure: Figure, modes: Sequence[str]) -> None:
    """Name all points by their signs, where not all can bear their name."""
    shown = sorted(set(modes))
    handles = [Line2D([], [], ls="", color=page.styles[m][0], marker=page.styles[m][1], ms=6) for m in shown]
    figure.legend(handles, [brief(mode) for mode in shown], loc="outside lower center", ncols=5)


def _name(
    axes: Axes,
    labelled: list[tuple[str, tuple[float, float]]],
    places: list[tuple[float, float]],
    edge: list[tuple[float, float]],
    plane: tuple[float, float],
) -> None:
    """Name points where the name lies on no other point, name or line."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()

    def on_plane(place: tuple[float, float]) -> tuple[float, float]:
        return plane[0] * (place[0] - left) / (right - left), plane[1] * (place[1] - low) / (high - low)

    marks = [*map(on_plane, places), *along([on_plane(place) for place in edge])]
    stand = spots([(text, on_plane(place)) for text, place in labelled], marks, plane)
    for (text, place), spot in zip(labelled, stand, strict=True):
        axes.annotate(text, place, (spot.x, spot.y), textcoords="offset points", ha=spot.side, fontsize=8)


def _zoom(axes: Axes, places: list[tuple[float, float]]) -> None:
    """Show the points, and of their intervals as much as there is room for."""
    right = max(x for x, _ in places)
    low, high = min(y for _, y in places), max(y for _, y in places)
    room = 0.6 * (high - low) or 1.0
    axes.set_xlim(0, 1.25 * right)
    axes.set_ylim(low - room, high + room)


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the points (time, quality) that no other is both sooner and better than, by time."""
    best, edge = float("-inf"), []
    for place in sorted(range(len(points)), key=lambda k: (points[k][0], -points[k][1])):
        if points[place][1] > best:
            best = points[place][1]
            edge.append(place)
    return edge


def _datum(workload: Workload, option: Option) -> dict[str, Any]:
    assert option.time is not None
    assert option.quality is not None
    x, y = option.time, option.quality.difference
    return {
        "model": workload.model,
        "cell": option.cell.label,
        "time": x.value,
        "time_low": x.low,
        "time_high": x.high,
        "quality": y.value,
        "quality_low": y.low,
        "quality_high": y.high,
    }
