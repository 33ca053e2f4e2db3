"""Does it converge like one device: the final metric less solo's, with its interval and the margin."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from bench.base.style import brief
from bench.report.blocks import Block, Picture, plain
from bench.report.compare import gap, is_fraction
from bench.report.differences import Quality, qualities
from bench.report.page import NONE, SERIES, CellGroup, Page, levels, table

VERDICTS = {
    "within": "as good: the interval is above −margin",
    "worse": "worse: the interval is below −margin",
    "open": "open",
    "no margin": NONE,
}


INTRO = (
    "Mean final metric less that of the solo runs of this tree, + is better, with the 95 % interval of the difference "
    "(Student's t over seeds, which are not paired; – where there are too few seeds). The margin is the one that was "
    "fixed with solo's baseline: a cell is *as good* if its whole interval lies above −margin, and *open* if more "
    "seeds are needed to say."
)


def section(page: Page) -> list[Block]:
    """Return a forest plot and a table for each workload with solo runs."""
    return page.section("Quality against one device", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = qualities(group.page, group.cells)
    return [*group.draw(_figure, rows, len(rows)), table(map(_row, rows))] if rows else []


def _row(row: Quality) -> dict[str, str]:
    metric = row.cell.about.final.eval_metric
    return {
        "mode": plain(row.cell.label),
        "n": str(row.difference.n),
        "n solo": str(row.difference.n_base),
        f"final {plain(metric)}": levels(row.cell.eval),
        "difference": _shown(row.difference.value, metric),
        "95 % interval": _interval(row, metric),
        "margin": NONE if row.margin is None else gap(row.margin, metric).lstrip("+-"),
        "verdict": VERDICTS[row.verdict],
    }


def _shown(value: float, metric: str) -> str:
    return gap(-value, metric)


def _interval(row: Quality, metric: str) -> str:
    low, high = row.difference.low, row.difference.high
    return NONE if low is None or high is None else f"{_shown(low, metric)} to {_shown(high, metric)}"


def _figure(group: CellGroup, whole: list[Quality]) -> Picture:
    rows, metric = whole[:SERIES], whole[0].cell.about.final.eval_metric
    scale, unit = (100.0, " (percentage points)") if is_fraction(metric) else (1.0, "")
    figure = Figure(figsize=(9, 1.2 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="#333333", lw=1)
    for place, row in enumerate(rows):
        colour, marker = group.page.styles[row.cell.about.mode]
        d = row.difference
        if d.low is not None and d.high is not None:
            axes.plot([scale * d.low, scale * d.high], [place, place], color=colour, lw=1.8)
        axes.plot([scale * d.value], [place], color=colour, marker=marker, ms=6)
    margin = rows[0].margin
    if margin is not None:
        axes.axvline(-scale * margin, color="#cc3311", lw=1.2, ls=(0, (4, 2)))
        axes.axvspan(axes.get_xlim()[0], -scale * margin, color="#cc3311", alpha=0.07, lw=0)
        axes.set_xlim(min(axes.get_xlim()[0], -1.15 * scale * margin))
        axes.text(-scale * margin, -0.75, "−margin ", color="#cc3311", fontsize=8, ha="right", va="center")
    axes.set_yticks(range(len(rows)), [f"{brief(row.cell.label)}  n={row.difference.n}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -1.1)
    axes.grid(False, axis="y")
    n = rows[0].difference.n_base
    axes.set_xlabel(f"{metric} less solo's{unit}, + is better; solo n={n}; lines are 95 % intervals")
    alt = f"Difference of the final {metric} to solo with 95 % intervals, by mode, of {group.title}"
    return group.page.figure(
        figure, group.slug("quality"), [_data(row) for row in whole], f"Quality: {group.title}", alt
    )


def _data(row: Quality) -> dict[str, Any]:
    d = row.difference
    seeds = {"cell": row.cell.label, "n": d.n, "n_solo": d.n_base}
    return seeds | {"difference": d.value, "low": d.low, "high": d.high, "margin": row.margin, "verdict": row.verdict}
