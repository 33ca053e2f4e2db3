"""What ranks waited for: their idle time by cause."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.base.style import brief
from bench.report.blocks import Block, Heading, Picture, TableBlock, Text, plain, told
from bench.report.idleness import KINDS, IdleShares
from bench.report.page import NONE, SERIES, Page, more, number, table
from bench.results.cells import Workload

COLOURS = {
    "late rank": "#cc3311",
    "orders": "#ee7733",
    "bookkeeping": "#777777",
    "short": "#bbbbbb",
    "other": "#009988",
}


def section(page: Page) -> list[Block]:
    """A figure and a table for each workload with more than one rank."""
    parts: list[Block] = []
    pen = page.pen
    found = page.idle
    for workload, cells in page.workloads.items():
        rows = [row for cell in cells for row in found.get(cell.name, ())]
        if rows:
            picture = pen.draw(lambda w=workload, rows=rows: _figure(page, w, rows))  # type: ignore[misc]
            beyond = (
                more(len({row.cell.name for row in rows}) - SERIES, "cell", "not in the figure") if picture else None
            )
            parts += told(Heading(plain(page.title(workload)), 3), picture, beyond, _table(rows))
    intro = (
        "Stretches in which a rank neither computes, makes batches, copies, evaluates, saves nor is on the wire, by cause, "
        "in percent of its wall time. *Late rank*: it stood in a collective until the named rank came; *orders*: it had "
        "nothing to do until the coordinator answered; *bookkeeping*: its own loop, or another program that had the core; "
        "*short*: gaps under a millisecond, not told apart; *other*: startup, end and faults. Means over the n finished "
        "runs of a cell; the longest gap of any of them."
    )
    return told(Heading("Idle time by cause"), Text(intro), parts, pen.rest) if parts else []


def _table(rows: list[IdleShares]) -> TableBlock:
    return table(
        [
            {
                "mode": plain(row.cell.marked),
                "n": str(row.n),
                "rank": str(row.rank),
                "idle": _percent(row.total),
                **{name: _percent(row.shares[name]) for name in KINDS},
                "waited for": ", ".join(f"rank {by} {_percent(share)}" for by, share in _most_first(row.late)) or NONE,
                "longest gap, ms": number(1000 * row.longest_s),
                "its cause": plain(row.longest) or NONE,
            }
            for row in rows
        ]
    )


def _most_first(late: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(late.items(), key=lambda item: (-item[1], item[0]))[:3]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _figure(page: Page, workload: Workload, whole: list[IdleShares]) -> Picture:
    shown = list(dict.fromkeys(row.cell.name for row in whole))[:SERIES]
    rows = [row for row in whole if row.cell.name in shown]
    places = np.array([place + 0.6 * shown.index(row.cell.name) for place, row in enumerate(rows)])
    figure = Figure(figsize=(10, 1.2 + 0.24 * float(places[-1] + 1)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(rows))
    for kind in KINDS:
        shares = np.array([100 * row.shares[kind] for row in rows])
        axes.barh(places, shares, 0.9, left=left, color=COLOURS[kind])
        left += shares
    for place, total in zip(places, left, strict=True):
        axes.text(total, place, f" {total:.0f}", va="center", fontsize=7.5)
    axes.set_yticks(
        places, [f"{brief(row.cell.label)}   rank {row.rank}" if row.rank == 0 else f"rank {row.rank}" for row in rows]
    )
    axes.set_ylim(places[-1] + 0.7, -0.7)
    axes.set_xlim(0, min(100.0, 1.12 * float(left.max())) or 1)
    axes.set_xlabel("% of the rank's wall time")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    handles = [Patch(color=COLOURS[kind], label=kind) for kind in KINDS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.suptitle(f"Idle: {page.title(workload)}", x=0.01, ha="left", fontsize=11, weight="bold")
    data = pd.DataFrame([{"cell": row.cell.label, "n": row.n, "rank": row.rank, **row.shares} for row in whole])
    alt = f"Idle time by cause in percent of wall time, by rank and mode, of {page.title(workload)}"
    return page.figure(figure, page.slug("idle", workload), data, alt)
