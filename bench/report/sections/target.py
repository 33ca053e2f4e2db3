"""Samples and seconds until a run reaches its target; runs that never reach it are shown as misses."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bench.base.number_format import plural
from bench.base.style import brief
from bench.report.blocks import Block, Picture, Text, plain
from bench.report.measures.compare import Rival
from bench.report.measures.time_to_target import Axis, Reach, reach, targets
from bench.report.page import NONE, SERIES, CellGroup, Page, number, table
from bench.report.page_one.answer import time_over_solo
from bench.results.cells import solo_of

NEVER = "not reached"


INTRO = (
    "Samples trained by all ranks, and training seconds, at the first evaluation that reached the target of the recipe. "
    "Medians over the n seeds of a cell; one that never came there counts as infinitely long, so a median may be "
    f"*{NEVER}*. *× solo's seconds*: ratio of geometric means, as on page one, where no seed missed; that of the medians "
    "may differ. What was interrupted by hand is left out. Every rank has a batch of its own, so N ranks that meet in "
    "every step train N batches in it, and may need more samples than one."
)


def section(page: Page) -> list[Block]:
    """Return a figure and a table for each workload with a target."""
    return page.section("Time to target", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = [row for row in map(reach, group.cells) if row.n and row.cell.about.target.value is not None]
    if not rows:
        return []
    device = solo_of(group.cells)
    solo = next((row for row in rows if row.cell is device), None)
    drawn = group.draw(_figure, rows, len(rows)) if any(row.reached for row in rows) else []
    return [_goal(rows), *drawn, table(_row(row, solo) for row in rows)]


def _goal(rows: list[Reach]) -> Text:
    values = sorted(value for value in targets(row.cell for row in rows) if value is not None)
    goal = " or ".join(f"{value:g}" for value in values)
    reached = f"{sum(row.reached for row in rows)} of {plural(sum(row.n for row in rows), 'run')}"
    apart = " Costs of reaching different targets are not compared." if len(values) > 1 else ""
    return Text(f"Target: {plain(rows[0].cell.about.final.eval_metric)} {goal}, reached by {reached}.{apart}")


def _row(row: Reach, solo: Reach | None) -> dict[str, str]:
    return {
        "mode": plain(row.cell.marked),
        "n": str(row.n),
        "reached": f"{row.reached} of {row.n}",
        "samples": _median(row, "samples"),
        "× solo's samples": _times(row, solo, "samples"),
        "seconds": _median(row, "seconds"),
        "× solo's seconds": _times(row, solo, "seconds"),
    }


def _median(row: Reach, axis: Axis) -> str:
    middle = row.middle(axis)
    return NEVER if middle is not None and math.isinf(middle) else number(middle)


def _times(row: Reach, solo: Reach | None, axis: Axis) -> str:
    if row is solo or solo is None or len(targets([row.cell, solo.cell])) > 1:
        return NONE
    if axis == "seconds":
        time = time_over_solo(Rival(row.cell, solo.cell))
        return NONE if time is None else f"{time.value:.2f}"
    mine, theirs = row.middle(axis), solo.middle(axis)
    if mine is None or not theirs or math.isinf(mine) or math.isinf(theirs):
        return NONE
    return f"{mine / theirs:.2f}"


def _figure(group: CellGroup, whole: list[Reach]) -> Picture:
    rows = whole[:SERIES]
    figure = Figure(figsize=(9.4, 1.2 + 0.3 * len(rows)), layout="constrained")
    both: tuple[Axis, Axis] = ("samples", "seconds")
    for axes, axis in zip(figure.subplots(1, 2, sharey=True), both, strict=True):
        there = [value for row in rows for value in getattr(row, axis) if math.isfinite(value)]
        edge = 1.08 * max(there, default=1.0)
        for place, row in enumerate(rows):
            colour, marker = group.page.styles[row.cell.about.mode]
            values = getattr(row, axis)
            known = [value for value in values if math.isfinite(value)]
            axes.plot(known, [place] * len(known), marker, color=colour, alpha=0.75, ms=5)
            missed = sum(map(math.isinf, values))
            if missed:
                axes.plot([edge], [place], "x", color="#cc3311", ms=7, mew=2)
                axes.text(1.02 * edge, place, f"{missed} missed", color="#cc3311", fontsize=8, va="center")
            middle = row.middle(axis)
            if middle is not None and math.isfinite(middle):
                axes.plot([middle, middle], [place - 0.3, place + 0.3], color=colour, lw=2)
        axes.set_xlim(0, 1.25 * edge)
        if axis == "samples":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("samples trained" if axis == "samples" else "training seconds")
        axes.grid(False, axis="y")
        axes.tick_params(labelleft=True)  # a narrow page shows one below the other
    axes.set_yticks(range(len(rows)), [f"{brief(row.cell.label)}  n={row.n}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    data = [
        {"cell": row.cell.label, "reached": math.isfinite(samples), "samples": samples, "seconds": seconds}
        for row in whole
        for samples, seconds in zip(row.samples, row.seconds, strict=True)
    ]
    alt = f"Samples and seconds to the target by mode, one point a run, bars are medians, of {group.title}"
    return group.page.figure(figure, group.slug("target"), data, f"Until the target: {group.title}", alt)
