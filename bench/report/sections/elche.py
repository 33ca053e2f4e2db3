"""The schedule: how many steps each rank runs between two meetings, and how that changed."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.base.style import brief
from bench.report.blocks import Block, Heading, Picture, Text, plain, told
from bench.report.page import NONE, Page, more, table
from bench.results.cells import Cell, Workload
from bench.results.schema import Elche, Metrics, WindowRow

COLUMNS, PANELS = 3, 9
HEAD = 34
"""Signs of the head of a panel."""
RANKS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb", "#000000")


def section(page: Page) -> list[Block]:
    """A table for each workload with schedules, and a figure of those that changed. First seed of each cell."""
    parts: list[Block] = []
    pen = page.pen
    for workload, found in page.workloads.items():
        planned = [(cell, m, m.elche) for cell in found for m in cell.one_each[:1] if m.elche is not None]
        if planned:
            moved = [(cell, plan) for cell, _, plan in planned if len(plan.plans) > 1]
            picture = pen.draw(lambda w=workload, moved=moved: _figure(page, w, moved)) if moved else None  # type: ignore[misc]
            parts += told(
                Heading(plain(page.title(workload)), 3),
                table([_row(cell, m, plan) for cell, m, plan in planned]),
                picture,
                more(len(moved) - PANELS, "cell", "not in the figure") if picture else None,
                None if moved else Text("No schedule changed in the course of its run."),
            )
    intro = (
        "A window is the steps between two meetings; the anchor is the number of steps of the slowest rank in it, counts "
        "are those of each rank. Milliseconds per batch are of the second half of the windows. Shown: the first finished "
        "seed of each cell."
    )
    return told(Heading("Schedules (El Che)"), Text(intro), parts, pen.rest) if parts else []


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
            str(sum(said.verdict == verdict for said in plan.guard)) for verdict in ("suppress", "nudge")
        ),
    }


def _pace(windows: list[WindowRow], rank: int) -> str:
    """Mean over the steps of `windows`, milliseconds: a short window at the end of an epoch counts for its few steps."""
    steps = sum(window.steps[rank] for window in windows)
    busy = sum(window.steps[rank] * (window.ms_per_batch[rank] or 0.0) for window in windows)
    return f"{busy / steps:.2f}" if steps else NONE


def _counts(counts: list[int]) -> str:
    return "/".join(map(str, counts))


def _figure(page: Page, workload: Workload, whole: list[tuple[Cell, Elche]]) -> Picture:
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
    figure.suptitle(f"Steps per window: {page.title(workload)}", x=0.01, ha="left", fontsize=11, weight="bold")
    data = [
        {"cell": cell.label, "seconds": p.seconds, "anchor": p.anchor, "rank": rank, "count": count, "reason": p.reason}
        for cell, plan in whole
        for p in plan.plans
        for rank, count in enumerate(p.counts)
    ]
    alt = f"Anchor and counts over time of {page.title(workload)}, by mode"
    return page.figure(figure, page.slug("schedules", workload), pd.DataFrame(data), alt)


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
