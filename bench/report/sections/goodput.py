"""How the seconds of all ranks were spent, and the measures of useful time that the literature derives from them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from bench.report.blocks import Block, plain
from bench.report.page import CellGroup, Page, percent, table
from bench.results.cells import Cell
from bench.results.schema_goodput import Goodput, RankSeconds

INTRO = (
    "All ranks' seconds from launch to the last rank's end, in parts that sum to 100 %; means over the n finished runs of a "
    "cell. Parts that no cell has are left out. *goodput*: kept and repeated training / time with a machine. "
    "*ETTR*: all but discarded, saving, detecting, regrouping, restoring, starting and absent. *ETT*: the same, but lost "
    "training counts where it is repeated. *UCF*: ETTR less communicating. Start-up is most of a short run."
)
LEAST = 0.0005
"""Least share that counts: smaller ones would be printed as 0.0 %."""
MEASURES: dict[str, Callable[[Goodput], float]] = {
    "goodput": lambda row: row.goodput,
    "ETTR": lambda row: row.ettr,
    "ETT": lambda row: row.ett,
    "UCF": lambda row: row.ucf,
}


def section(page: Page) -> list[Block]:
    """Return a table for each workload whose results contain goodput."""
    return page.section("Useful share of the time (goodput)", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    cells = [(cell, rows) for cell in group.cells if (rows := _measured(cell))]
    parts = [name for name in RankSeconds.model_fields if any(_mean(rows, name) >= LEAST for _, rows in cells)]
    lines = [
        {
            "mode": plain(cell.marked),
            "n": str(len(rows)),
            **{name: percent(fmean(map(measure, rows)), 1) for name, measure in MEASURES.items()},
            **{name: percent(_mean(rows, name), 1) for name in parts},
        }
        for cell, rows in cells
    ]
    return [table(lines)] if lines else []


def _measured(cell: Cell) -> list[Goodput]:
    return [m.goodput for m in cell.timed if m.goodput is not None]


def _mean(rows: list[Goodput], name: str) -> float:
    return fmean(getattr(row.parts, name) for row in rows)
