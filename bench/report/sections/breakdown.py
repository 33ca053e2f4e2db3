"""Shares of each rank's wall time by category. Owns the stacked bars by rank, which the section `idle` draws too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.base.style import CATEGORIES, brief, some
from bench.report.blocks import Block, Picture, TableBlock, Text, nonempty, plain
from bench.report.page import SERIES, CellGroup, Page, more, percent, table
from bench.results.cells import Cell

LABEL_FROM = 0.06
"""Least share whose percentage is written into the bar."""
IN_A_ROW = 4
"""Most names in a row of the legend."""
WIDTH, LONGEST = 4.5, 28
"""Width of the figure in inches, readable on a phone; and most characters of a label beside a bar."""
NAME = 60
"""Most characters of a name over the bars of a cell."""
LABELLED = 48
"""Most rows of a figure whose bars carry percentages: in more rows the text would be too small."""
MOST_ROWS, FEWEST_ROWS = 64, 8
"""Most bars of a figure, and the bars that a cell gets at least. A figure of a thousand bars could not be opened."""
LATE = "in which ranks joined later"
UNDRAWN = "not in the figure, which shows the quickest, the slowest, and others evenly"
T = TypeVar("T")
DARK = ("compute", "eval", "checkpoint", "absent")
"""Categories of a dark colour."""
ON_LIGHT = "#111111"
"""Colour of a number on the others, whose colours are the same on a dark page: black is light there."""
Row = dict[str, Any]
"""The label of a cell, a rank, the number of runs `n`, and a fraction for each of `_names`."""
INTRO = (
    "Shares of each rank's wall time from ready to finished (of a lost rank: to its last measured slice), mean over the "
    "n finished runs. *comm* runs from the last arrival at a collective to its end and includes copying snapshots; "
    "*wait* is waiting for others or for orders; *other* is what no measured slice covers."
)
ABSENT = (
    " While the run goes on without a rank, that rank is *absent*: from its loss, or from the start if it joins later, "
    "until its next process is ready to join."
)


def section(page: Page) -> list[Block]:
    """Return a figure by rank and a table by cell for each workload."""
    absent = any(rank.absent for cell in page.cells for m in cell.timed for rank in m.breakdown)
    return page.section("Where the time went", INTRO + ABSENT * absent, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = [row for cell in group.cells for row in _rows(cell)]
    if not any(row["absent"] for row in rows):
        rows = [{name: value for name, value in row.items() if name != "absent"} for row in rows]
    earlier = sum(bool(m.late) and not m.breakdown for cell in group.cells for m in cell.timed)
    unknown = left_out(earlier, f"{LATE}, recorded by a version that did not count their absence")
    if not rows:
        return nonempty(unknown)
    by_cell = list(_by_cell(rows).values())
    shown = drawn_ranks(by_cell, lambda row: float(row["compute"]))
    rest = more(sum(map(len, by_cell[:SERIES])) - len(shown), "rank", UNDRAWN)
    return nonempty(group.draw(partial(_figure, shown), rows, len(by_cell)), rest, _table(rows), unknown)


def left_out(count: int, which: str) -> Text | None:
    """Return a line that counts the runs that a section leaves out; None if there are none."""
    return Text(f"Left out: {plural(count, 'run')} {which}.") if count else None


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the categories in the rows: without `absent` if no rank was."""
    return [name for name in CATEGORIES if name in rows[0]]


def drawn_ranks(cells: Sequence[Sequence[T]], load: Callable[[T], float]) -> list[T]:
    """Return the rows that a figure shows of the first `SERIES` cells. Of a cell with many ranks: the fastest by
    `load`, the slowest, and evenly spaced ones in between."""
    shown = cells[:SERIES]
    return [row for ranks in shown for row in some(ranks, max(MOST_ROWS // len(shown), FEWEST_ROWS), load)]


def _by_cell(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return grouped((row["cell"], row) for row in rows)


def _rows(cell: Cell) -> list[Row]:
    """Return a row for each rank of a cell: its shares, averaged over the timed runs."""
    rows: list[Row] = []
    for rank in range(cell.about.world_size):
        measured = [m.breakdown[rank] for m in cell.timed if m.breakdown]
        if measured:
            shares = {name: fmean(getattr(row, name) for row in measured) for name in CATEGORIES}
            rows.append({"cell": cell.label, "rank": rank, "n": len(measured), **shares})
    return rows


def _table(rows: Sequence[Row]) -> TableBlock:
    return table(
        {
            "mode": plain(cell),
            "n": f"{fmean(row['n'] for row in ranks):.0f}",
            **{name: percent(fmean(row[name] for row in ranks), 1) for name in _names(rows)},
        }
        for cell, ranks in _by_cell(rows).items()
    )


def rank_bars(
    labels: Sequence[str],
    ranks: Sequence[int],
    shares: Mapping[str, NDArray[np.float64]],
    colours: Mapping[str, str],
    gap: float,
    width: float,
    size: tuple[float, float],
) -> tuple[Figure, Axes, NDArray[np.float64]]:
    """Draw a horizontal stacked bar for each rank. `labels`, `ranks`: of each bar. `shares`: category -> its length in
    each bar, shape (bars,). `gap`: space for the name over the bars of a cell, in bars. `width`: thickness of a bar,
    in bars. `size`: inches around all bars, and of one bar.

    Returns the figure, its axes and the vertical place of each bar, shape (bars,).
    """
    cells = list(dict.fromkeys(labels))
    places = np.array([place + gap * cells.index(label) for place, label in enumerate(labels)])
    figure = Figure(figsize=(WIDTH, size[0] + size[1] * float(places[-1] + 1 + gap)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(places))
    for name, share in shares.items():
        axes.barh(places, share, width, left=left, color=colours[name])
        left = left + share
    above: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "bottom"}
    for label in cells:
        top = float(places[labels.index(label)]) - width / 2
        axes.annotate(brief(label, NAME), (0, top), (2, 1.5), weight="bold", fontsize=8.5, **above)
    axes.set_yticks(places, [f"rank {rank}" for rank in ranks])
    axes.set_ylim(places[-1] + 0.7, -0.7 - gap)
    axes.tick_params(axis="y", length=0)
    return figure, axes, places


def legend(figure: Figure, colours: Mapping[str, str], shown: Sequence[str]) -> None:
    """Add a legend of the categories `shown` below the bars, `IN_A_ROW` names in a row at most, because more would be
    wider than the figure."""
    handles: list[Any] = [Patch(color=colours[name], label=name) for name in shown]
    rows = max(-(-len(handles) // IN_A_ROW), 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // rows))


def _figure(rows: list[Row], group: CellGroup, whole: list[Row]) -> Picture:
    shares = {name: np.array([row[name] for row in rows], dtype=float) for name in _names(rows)}
    labels, ranks = [row["cell"] for row in rows], [row["rank"] for row in rows]
    figure, axes, places = rank_bars(labels, ranks, shares, CATEGORIES, 0.9, 0.92, (1.2, 0.26))
    ends = np.cumsum(list(shares.values()), axis=0)
    for (name, values), end in zip(shares.items(), ends, strict=True):
        for place, value, stop in zip(places, values, end, strict=True):
            if value >= LABEL_FROM and len(rows) <= LABELLED:
                colour = "white" if name in DARK else ON_LIGHT
                axes.text(
                    stop - value / 2, place, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=colour
                )
    axes.set_xlim(0, 1)
    axes.set_xticks(np.linspace(0, 1, 6), [f"{p}" for p in range(0, 101, 20)])
    axes.set_xlabel("% of the rank's wall time")
    axes.grid(False)
    shown = [name for name, values in shares.items() if (values > 0.0005).any()]
    legend(figure, CATEGORIES, shown)
    alt = f"Share of wall time by rank and mode of {group.title}, in {', '.join(shown)}"
    return group.page.figure(figure, group.slug("breakdown"), whole, group.title, alt)
