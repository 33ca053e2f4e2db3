"""Weak scaling: every rank has the same batch, so more ranks train more samples in a step. Compared with solo, and with
the sum of the ranks' own speeds."""

from __future__ import annotations

from bench.report.blocks import Block, Picture, Text, plain
from bench.report.measures.compare import Rival, legend, rivals, wires
from bench.report.page import CellGroup, Page, percent, table
from bench.report.sections.speedup import columns, draw

INTRO = (
    "The batch of a rank is the same at every world size, so the ideal is N times the samples per second of solo "
    "(with emulated speeds: their sum, over solo's own). *Speed-up / ideal* needs N free cores to reach 100 %; *serial* "
    "is Karp and Flatt's fraction (1/S − 1/N) / (1 − 1/N), N the ideal: what part of the work seems not to be shared, "
    "0 is perfect, and growing with N it is cost of communication. *Vs alone* is against the speed that the "
    "ranks had in the same run, oversubscribed or not; *steady* leaves out the controller's calibration and the end."
)


def section(page: Page) -> list[Block]:
    """Return a table and a figure for each workload that was run on more than one rank."""
    return page.section("Weak scaling", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = [rival for rival in rivals(group.cells) if rival.cell.speed.mean is not None]
    several = [rival for rival in rows if rival.cell.about.world_size > 1]
    if not any(rival.speedup is not None or rival.elsewhere for rival in several):
        return []
    return [*group.draw(_figure, rows), table(map(_row, rows)), Text(legend(rows)), Text(wires(rows))]


def _row(rival: Rival) -> dict[str, str]:
    return {
        "mode": plain(rival.cell.marked),
        "ranks": str(rival.cell.about.world_size),
        **columns(rival, "speed-up over solo", rival.ideal, ideal=f"{rival.ideal:g}"),
        "vs alone": percent(rival.efficiency),
        "steady": percent(rival.steady, 1),
    }


def _figure(group: CellGroup, rows: list[Rival]) -> Picture | None:
    """Draw the speed-up of cells that can be compared by number of ranks. The others are in the table only."""
    scaled = [rival for rival in rows if not rival.distorted]
    title = f"Weak scaling: {group.title}"
    return draw(group.page, scaled, group.slug("scaling"), title, group.page.cores(rows[0].cell))
