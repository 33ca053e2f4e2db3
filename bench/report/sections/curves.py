"""How the modes learn: loss and metric against samples and against seconds of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bench.base import number_format
from bench.base.number_format import plural
from bench.report.blocks import Block, Picture
from bench.report.compare import is_fraction
from bench.report.page import SERIES, CellGroup, Page
from bench.report.scaling_series import DASHES
from bench.results.cells import Cell

Point = dict[str, Any]
"""An evaluated epoch of a seed; nan: not known."""
NEAR = 5
"""Ratio of highest to lowest value below which a logarithmic axis is marked evenly."""


INTRO = (
    "One point per evaluated epoch: mean over the seeds; against samples with a band from the lowest to the highest. "
    "Seconds are training seconds; the clock stands still during evaluation. Dotted: the test loss, and the training "
    "metric where steps recorded it."
)


def section(page: Page) -> list[Block]:
    """Return one figure for each workload and world size, solo in all of them."""
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
    """Return a point for each seed that finished and each evaluated epoch."""
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
    """Return the mean of what is known; nan: nothing is."""
    known = _known(values)
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Panel:
    """One of the four plots."""

    x: str
    y: str
    label: str
    fraction: bool
    """Plot the error rate, 1 - metric: on its logarithm, good results stay apart."""
    beside: str
    """The same quantity of the other data, dotted."""

    def draw(self, axes: Axes, points: Sequence[Point], look: dict[str, Any]) -> None:
        """Add the curves of one cell; the band of its seeds where they share the abscissa."""
        by_epoch = [[p for p in points if p["epoch"] == epoch] for epoch in sorted({p["epoch"] for p in points})]
        x = [mean(p[self.x] for p in seeds) for seeds in by_epoch]
        values = [_known(self._value(p[self.y]) for p in seeds) for seeds in by_epoch]
        if all(map(math.isnan, x)):
            return  # without timing
        axes.plot(x, [mean(each) for each in values], markevery=max(1, len(x) // 10), **look)
        other = [mean(self._value(p[self.beside]) for p in seeds) for seeds in by_epoch]
        if not all(map(math.isnan, other)):
            axes.plot(x, other, **{**look, "ls": ":", "marker": "", "lw": 1.0, "alpha": 0.8})
        if self.x == "samples" and len({p["seed"] for p in points}) > 1:
            low, high = ([end(each, default=math.nan) for each in values] for end in (min, max))
            axes.fill_between(x, low, high, color=look["color"], alpha=0.12, lw=0)

    def _value(self, value: float) -> float:
        return 1 - value if self.fraction else value

    def finish(self, axes: Axes, log: bool) -> None:
        """Set scales and labels."""
        axes.set_xlabel("samples trained" if self.x == "samples" else "training seconds")
        axes.set_title(self.label)
        axes.set_xlim(left=0)
        low, high = axes.get_ylim()
        log = log and high > low  # a single value has no scale
        if log:
            axes.set_yscale("log")
            near = high < NEAR * low  # less than a few of a decade's marks would be in sight
            axes.yaxis.set_major_locator(
                MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]) if near else LogLocator(subs=(1.0, 2.0, 3.0, 5.0))
            )
            axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        if self.x == "samples":
            axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v / 1000:g}k" if v else "0"))


def _figure(size: int, group: CellGroup, whole: list[Cell]) -> Picture:
    page, shown = group.page, whole[:SERIES]
    curves = {cell.label: curve(cell) for cell in shown}
    data = [point for points in curves.values() for point in points]
    metric = shown[0].about.final.eval_metric
    fraction = is_fraction(metric) and all(point["metric"] < 1 for point in data)
    eval_label = f"Test error (1 − {metric})" if fraction else f"Test {metric}"
    panels = [
        Panel(x, y, label, fraction and y == "metric", beside)
        for y, label, beside in (("loss", "Training loss", "test_loss"), ("metric", eval_label, "train_metric"))
        for x in ("samples", "seconds")
    ]
    looks = {cell.label: _look(page, cell, shown) for cell in shown}
    figure = Figure(figsize=(10.5, 6.2), layout="constrained")
    for axes, panel in zip(figure.subplots(2, 2).flat, panels, strict=True):
        for cell in shown:
            if points := curves[cell.label]:
                panel.draw(axes, points, looks[cell.label])
        panel.finish(axes, log=all(point[panel.y] > 0 for point in data) and (panel.y == "loss" or panel.fraction))
    _legend(figure, looks, shown, metric)
    world = f" on {plural(size, 'rank')}" if size > 1 else ""
    alt = f"Training loss and test {metric} of {group.title}{world} against samples and seconds, by mode"
    return page.figure(figure, f"{group.slug('curves')}-w{size}", data, f"{group.title}{world}", alt)


def _legend(figure: Figure, looks: Mapping[str, dict[str, Any]], shown: list[Cell], metric: str) -> None:
    """Name the cells from best to worst, with where they ended."""
    sign = -1.0 if shown[0].about.final.higher_is_better else 1.0
    ranked = sorted((c for c in shown if c.eval.mean is not None), key=lambda cell: sign * (cell.eval.mean or 0.0))
    handles = [figure.axes[0].plot([], [], **looks[cell.label])[0] for cell in ranked]
    names = [cell.label.replace(" at speeds", "\nat speeds").replace(" with ", "\nwith ") for cell in ranked]
    labels = [
        f"{name}\n{number_format.metric(c.eval.mean)} (n={c.eval.n})" for name, c in zip(names, ranked, strict=True)
    ]
    figure.legend(
        handles, labels, loc="outside right upper", title=f"final {metric}", alignment="left", labelspacing=0.7
    )


def _look(page: Page, cell: Cell, shown: Sequence[Cell]) -> dict[str, Any]:
    """Return colour and marker by mode; dashed with emulated speeds, and where several cells `shown` have one mode; solo on
    top."""
    colour, marker = page.styles[cell.about.mode]
    alike = [other for other in shown if other.about.mode == cell.about.mode]
    dashed = DASHES[(bool(alike[0].about.emulated_speeds) + alike.index(cell)) % len(DASHES)]
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.5}
    return {"color": colour, "marker": marker, "ls": dashed, "zorder": 5 if cell.is_solo else 3, **edge}
