"""Idle time of the ranks by cause."""

from __future__ import annotations

from functools import partial

import numpy as np

from bench.base.grouping import grouped
from bench.report.blocks import Block, Picture, nonempty, plain
from bench.report.measures.idleness import KINDS, IdleShares, known
from bench.report.page import NONE, SERIES, CellGroup, Page, more, number, percent, table
from bench.report.sections.breakdown import LATE, UNDRAWN, drawn_ranks, left_out, legend, rank_bars

COLOURS = {
    "late rank": "#cc3311",
    "orders": "#ee7733",
    "bookkeeping": "#777777",
    "short": "#bbbbbb",
    "other": "#009988",
}


INTRO = (
    "Stretches in which a rank neither computes, makes batches, copies, evaluates, saves nor is on the wire, by cause, "
    "in percent of its wall time. *Late rank*: it stood in a collective until the named rank came; *orders*: it had "
    "nothing to do until the coordinator answered; *bookkeeping*: its own loop, or another program that had the core; "
    "*short*: gaps under a millisecond, not told apart; *other*: startup, end and faults. Means over the n finished "
    "runs of a cell; the longest gap of any of them."
)


def section(page: Page) -> list[Block]:
    """Return a figure and a table for each workload that was trained on more than one rank."""
    return page.section("Idle time by cause", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = [row for cell in group.cells for row in group.page.idle.get(cell.name, ())]
    late = left_out(
        sum(not known(m) for cell in group.cells for m in cell.timed),
        f"{LATE}, recorded by a version that did not count their idle time",
    )
    if not rows:
        return nonempty(late)
    by_cell = grouped((row.cell.name, row) for row in rows)
    shown = drawn_ranks(list(by_cell.values()), lambda row: -row.total)
    rest = more(sum(map(len, list(by_cell.values())[:SERIES])) - len(shown), "rank", UNDRAWN)
    picture = group.draw(partial(_figure, shown), rows, len(by_cell), "not in the figure")
    return nonempty(picture, rest, table(map(_row, rows)), late)


def _row(row: IdleShares) -> dict[str, str]:
    return {
        "mode": plain(row.cell.marked),
        "n": str(row.n),
        "rank": str(row.rank),
        "idle": percent(row.total, 1),
        **{name: percent(row.shares[name], 1) for name in KINDS},
        "waited for": ", ".join(f"rank {by} {percent(share, 1)}" for by, share in _most_first(row.late)) or NONE,
        "longest gap, ms": number(1000 * row.longest_s),
        "its cause": plain(row.longest) or NONE,
    }


def _most_first(late: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(late.items(), key=lambda item: (-item[1], item[0]))[:3]


def _figure(rows: list[IdleShares], group: CellGroup, whole: list[IdleShares]) -> Picture:
    shares = {kind: np.array([100 * row.shares[kind] for row in rows]) for kind in KINDS}
    labels, ranks = [row.cell.label for row in rows], [row.rank for row in rows]
    figure, axes, places = rank_bars(labels, ranks, shares, COLOURS, 0.95, 0.9, (1.2, 0.24))
    totals = np.cumsum(list(shares.values()), axis=0)[-1]
    for place, total in zip(places, totals, strict=True):
        axes.text(total, place, f" {total:.0f}", va="center", fontsize=8)
    axes.set_xlim(0, min(100.0, 1.12 * float(totals.max())) or 1)
    axes.set_xlabel("% of the rank's wall time")
    axes.grid(False, axis="y")
    legend(figure, COLOURS, KINDS)
    data = [{"cell": row.cell.label, "n": row.n, "rank": row.rank, **row.shares} for row in whole]
    alt = f"Idle time by cause in percent of wall time, by rank and mode, of {group.title}"
    return group.page.figure(figure, group.slug("idle"), data, f"Idle: {group.title}", alt)
