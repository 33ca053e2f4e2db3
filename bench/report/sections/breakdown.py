"""Where the time of every rank went."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.base.style import CATEGORIES, brief
from bench.report.blocks import Block, Heading, Picture, TableBlock, Text, plain, told
from bench.report.page import SERIES, Page, more, table
from bench.results.cells import Cell, Workload

LABEL_FROM = 0.06
"""Shares from here on carry their number."""
LABELLED = 48
"""Of more rows they do not: nobody could read them."""


def section(page: Page) -> list[Block]:
    """A figure by rank and a table by cell, for each workload."""
    parts: list[Block] = []
    pen = page.pen
    for workload, found in page.workloads.items():
        rows = pd.DataFrame([row for cell in found for row in _rows(cell)])
        if len(rows):
            picture = pen.draw(lambda w=workload, rows=rows: _figure(page, w, rows))  # type: ignore[misc]
            beyond = (
                more(rows["cell"].nunique() - SERIES, "cell", "in the table, not in the figure") if picture else None
            )
            parts += told(Heading(plain(page.title(workload)), 3), picture, beyond, _table(rows))
    intro = (
        "Shares of each rank's wall time from ready to finished (of a lost rank: to its last measured slice), mean over the "
        "n finished runs. *comm* runs from the last arrival at a collective to its end and includes copying snapshots; "
        "*wait* is waiting for others or for orders; *other* is what no measured slice covers."
    )
    return told(Heading("Where the time went"), Text(intro), parts, pen.rest) if parts else []


def _rows(cell: Cell) -> list[dict[str, str | int | float]]:
    """One row per rank: shares, mean over the runs that have the rank."""
    rows: list[dict[str, str | int | float]] = []
    for rank in range(cell.about.world_size):
        found = [m.breakdown[rank] for m in cell.one_each if m.breakdown]
        if found:
            shares = {name: fmean(getattr(row, name) for row in found) for name in CATEGORIES}
            rows.append({"cell": cell.label, "rank": rank, "n": len(found), **shares})
    return rows


def _table(rows: pd.DataFrame) -> TableBlock:
    means = rows.groupby("cell", sort=False).mean(numeric_only=True)
    lines = [
        {"mode": plain(cell), "n": f"{row['n']:.0f}", **{name: f"{100 * row[name]:.1f} %" for name in CATEGORIES}}
        for cell, row in means.iterrows()
    ]
    return table(lines)


def _figure(page: Page, workload: Workload, whole: pd.DataFrame) -> Picture:
    rows = whole[whole["cell"].isin(whole["cell"].unique()[:SERIES])]
    cells = rows["cell"].to_list()
    breaks = np.cumsum([0.0] + [0.0 if a == b else 0.55 for a, b in pairwise(cells)])
    places = np.arange(len(rows)) + breaks
    figure = Figure(figsize=(10, 1.1 + 0.26 * float(places[-1] + 1)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(rows))
    for name, colour in CATEGORIES.items():
        share = rows[name].to_numpy(dtype=float)
        axes.barh(places, share, 0.92, left=left, color=colour)
        dark = name in ("compute", "eval", "checkpoint")
        for place, value, start in zip(places, share, left, strict=True):
            if value >= LABEL_FROM and len(rows) <= LABELLED:
                text = f"{100 * value:.0f}"
                colour_of_text = "white" if dark else "black"
                axes.text(start + value / 2, place, text, ha="center", va="center", fontsize=7.5, color=colour_of_text)
        left = left + share
    names = [
        f"{brief(cell)}   rank {rank}" if rank == 0 else f"rank {rank}"
        for cell, rank in zip(cells, rows["rank"], strict=True)
    ]
    axes.set_yticks(places, names)
    axes.set_ylim(places[-1] + 0.7, -0.7)
    axes.set_xlim(0, 1)
    axes.set_xticks(np.linspace(0, 1, 6), [f"{p} %" for p in range(0, 101, 20)])
    axes.grid(False)
    axes.tick_params(axis="y", length=0)
    shown = [name for name in CATEGORIES if (rows[name] > 0.0005).any()]
    handles = [Patch(color=CATEGORIES[name], label=name) for name in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.suptitle(page.title(workload), x=0.01, ha="left", fontsize=11, weight="bold")
    alt = f"Share of wall time by rank and mode of {page.title(workload)}, in {', '.join(shown)}"
    return page.figure(figure, page.slug("breakdown", workload), whole, alt)
