"""El Che's schedules: how many steps each rank runs between two averages, and how that changed during the run."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.base.style import brief
from bench.report.blocks import Block, Picture, Text, plain
from bench.report.page import NONE, CellGroup, Page, table
from bench.results.cells import Cell
from bench.results.schema import Elche, Metrics, WindowRow

COLUMNS, PANELS = 3, 9
HEAD = 34
"""Most characters of the title of a panel."""
RANKS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb", "#000000")


INTRO = (
    "A window is the steps between two meetings; the anchor is the number of steps of the slowest rank in it, counts "
    "are those of each rank. Milliseconds per batch are of the second half of the windows. Shown: the first finished "
    "seed of each cell."
)


def section(page: Page) -> list[Block]:
    """Return a table for each workload with schedules, and a figure of the schedules that changed. Both show the first
    finished seed of each cell."""
    return page.section("Steps between averages (El Che)", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    planned = [(cell, m, m.elche) for cell in group.cells for m in cell.one_each[:1] if m.elche is not None]
    if not planned:
        return []
    moved = [(cell, plan) for cell, _, plan in planned if len(plan.plans) > 1]
    unmoved = [Text("No schedule changed in the course of its run.")]
    drawn = group.draw(_figure, moved, len(moved), "not in the figure", PANELS) if moved else unmoved
    return [table(_row(cell, m, plan) for cell, m, plan in planned), *drawn]


def _row(cell: Cell, metrics: Metrics, plan: Elche) -> dict[str, str]:
    pace = [_pace(plan.windows[len(plan.windows) // 2 :], rank) for rank in range(metrics.world_size)]
    return {
        "mode": plain(cell.label),
        "seed": str(metrics.seed),
        "windows": str(len(plan.windows)),
        "plans": str(len(plan.plans)),
        "anchor: first → last": f"{plan.plans[0].anchor} → {plan.anchor}",
        "counts: first → last": f"{_counts(plan.plans[0].counts)} → {_counts(plan.counts)}",
        "ms per batch, by rank": " / ".join(pace),
        "phase": plain(plan.plans[-1].phase) or NONE,
        "guard: suppressed / nudged": " / ".join(
            str(sum(row.verdict == verdict for row in plan.guard)) for verdict in ("suppress", "nudge")
        ),
    }


def _pace(windows: list[WindowRow], rank: int) -> str:
    """Return a rank's milliseconds per batch over `windows`, as text. Each window is weighted by its steps, so a short
    window at the end of an epoch counts little."""
    steps = sum(window.steps[rank] for window in windows)
    busy = sum(window.steps[rank] * (window.ms_per_batch[rank] or 0.0) for window in windows)
    return f"{busy / steps:.2f}" if steps else NONE


def _counts(counts: list[int]) -> str:
    return "/".join(map(str, counts))


def _figure(group: CellGroup, whole: list[tuple[Cell, Elche]]) -> Picture:
    moved = whole[:PANELS]
    rows = math.ceil(len(moved) / COLUMNS)
    columns = min(len(moved), COLUMNS)
    figure = Figure(figsize=(3.1 * columns + 1.2 + 1.5 * (columns == 1), 2.3 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(moved) :]:
        axes.set_visible(False)
    for axes, (cell, plan) in zip(grid.flat, moved, strict=False):
        _panel(axes, cell, plan)
    widest = max(grid.flat[: len(moved)], key=lambda axes: len(axes.get_lines()))
    figure.legend(handles=widest.get_lines(), loc="outside right upper")
    data = [
        {"cell": cell.label, "seconds": p.seconds, "anchor": p.anchor, "rank": rank, "count": count, "reason": p.reason}
        for cell, plan in whole
        for p in plan.plans
        for rank, count in enumerate(p.counts)
    ]
    alt = f"Anchor and counts over time of {group.title}, by mode"
    title = f"Steps per window: {group.title}"
    return group.page.figure(figure, group.slug("schedules"), data, title, alt)


def _panel(axes: Axes, cell: Cell, plan: Elche) -> None:
    ends = [window.seconds for window in plan.windows] or [plan.plans[-1].seconds]
    times = [p.seconds for p in plan.plans] + [max(ends[-1], plan.plans[-1].seconds)]
    size = cell.about.world_size
    for rank in range(size):
        counts = [p.counts[rank] for p in plan.plans]
        # Equal counts lie on each other: the first ranks are drawn broader, so that all of them show.
        width = 1.4 + 3.6 * (size - 1 - rank) / size
        colour = RANKS[rank % len(RANKS)]
        axes.step(times, [*counts, counts[-1]], where="post", color=colour, lw=width, label=f"rank {rank}")
    anchors = [p.anchor for p in plan.plans]
    axes.step(times, [*anchors, anchors[-1]], where="post", label="anchor", color="#333333", lw=1.0, ls=(0, (2, 1.5)))
    axes.set_title(brief(cell.label, HEAD))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_xlabel("seconds since launch")
    axes.set_ylabel("steps")
