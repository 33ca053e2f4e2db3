"""The final metric compared with the baseline, as the verdicts compare them: whether a mode converges like one
device."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.base.style import brief
from bench.report.blocks import Block, Picture, plain
from bench.report.measures.compare import gap, in_points
from bench.report.measures.differences import Quality, qualities
from bench.report.page import NONE, SERIES, CellGroup, Page, levels, table
from bench.report.sections.breakdown import LONGEST, WIDTH

INTRO = (
    "Final metric against the baseline that `bench validate` compares with, + is better: the median difference of all "
    "pairs of seeds, its confidence bounds adjusted for repeated looks (–: too few seeds), margin, verdict. Where there is "
    "no verdict: the mean less that of the solo runs of this tree, Student's interval of 95 %, and nothing is judged."
)


def section(page: Page) -> list[Block]:
    """Return a forest plot and a table for each workload that has verdicts or solo runs."""
    return page.section("Quality against one device", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = qualities(group.page, group.cells)
    return [*group.draw(_figure, rows, len(rows)), table(map(_row, rows))] if rows else []


def _row(row: Quality) -> dict[str, str]:
    metric = row.cell.about.final.eval_metric
    return {
        "mode": plain(row.cell.label),
        "n": str(row.difference.n),
        "n baseline": str(row.difference.n_base),
        "against": _against(row),
        f"final {plain(metric)}": levels(row.cell.eval),
        "difference": _shown(row.difference.value, row),
        "interval": _interval(row),
        "margin": NONE if row.margin is None else _shown(row.margin, row).lstrip("+-"),
        "verdict": NONE if row.verdict is None else f"*{row.verdict}*",
    }


def _against(row: Quality) -> str:
    if row.verdict is None:
        return "solo's runs"
    return "its baseline" if row.own else "solo's baseline"


def _shown(value: float, row: Quality) -> str:
    return gap(-value, row.cell.about.final.eval_metric, points=in_points(row.cell))


def _interval(row: Quality) -> str:
    low, high = row.difference.low, row.difference.high
    return NONE if low is None or high is None else f"{_shown(low, row)} to {_shown(high, row)}"


def _figure(group: CellGroup, whole: list[Quality]) -> Picture:
    rows, metric = whole[:SERIES], whole[0].cell.about.final.eval_metric
    scale, unit = (100.0, ", points") if in_points(*(row.cell for row in rows)) else (1.0, "")
    figure = Figure(figsize=(WIDTH, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="#333333", lw=1)
    for place, row in enumerate(rows):
        colour, marker = group.page.styles[row.cell.about.mode]
        d = row.difference
        if d.low is not None and d.high is not None:
            axes.plot([scale * d.low, scale * d.high], [place, place], color=colour, lw=1.8)
        axes.plot([scale * d.value], [place], color=colour, marker=marker, ms=6)
    margins = {row.margin for row in rows if row.margin is not None}
    if len(margins) == 1:
        (margin,) = margins
        least = min(axes.get_xlim()[0], -1.15 * scale * margin)
        axes.axvline(-scale * margin, color="#cc3311", lw=1.2, ls=(0, (4, 2)))
        axes.axvspan(least, -scale * margin, color="#cc3311", alpha=0.07, lw=0)
        axes.set_xlim(least)
        axes.text(-scale * margin, -0.75, " −margin", color="#cc3311", fontsize=8, ha="left", va="center")
    axes.set_yticks(range(len(rows)), [f"{brief(row.cell.label, LONGEST)}  n={row.difference.n}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -1.1)
    axes.grid(False, axis="y")
    higher = rows[0].cell.about.final.higher_is_better
    if not higher:  # better is right
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{-value + 0.0:g}"))
    better = "right is better" if higher else "lower values lie to the right"
    axes.set_xlabel(f"{brief(metric, 24)} against the baseline's{unit}\n{better}")
    alt = f"Difference of the final {metric} to the baseline with intervals, by mode, of {group.title}"
    return group.page.figure(
        figure, group.slug("quality"), [_data(row) for row in whole], f"Quality: {group.title}", alt
    )


def _data(row: Quality) -> dict[str, Any]:
    d = row.difference
    seeds = {"cell": row.cell.label, "n": d.n, "n_base": d.n_base, "against": _against(row)}
    return seeds | {
        "difference": d.value,
        "low": d.low,
        "high": d.high,
        "margin": row.margin,
        "verdict": row.verdict or "",
    }
