"""Weak scaling: every rank has the same batch, so more ranks train more samples in a step. Against solo, and against the
bound of the ranks' own speeds."""

from __future__ import annotations

from bench.report.blocks import Block, Heading, Picture, Text, plain, told
from bench.report.compare import Rival, dagger, ideal, rivals
from bench.report.page import NONE, Page, fixed, percent, table
from bench.report.sections.speedup import SpeedupPoint, draw, serial
from bench.results.cells import Workload


def section(page: Page) -> list[Block]:
    """A table and a figure for each workload that was run on more than one rank."""
    parts: list[Block] = []
    pen = page.pen
    for workload, found in page.workloads.items():
        shown = [rival for rival in rivals(found) if rival.cell.speed.mean is not None]
        if any(rival.cell.about.world_size > 1 and rival.speedup is not None for rival in shown):
            parts += told(
                Heading(plain(page.title(workload)), 3),
                pen.draw(lambda w=workload, shown=shown: _figure(page, w, shown)),  # type: ignore[misc]
                table([_row(rival) for rival in shown]),
                Text(dagger(shown)),
            )
    intro = (
        "The batch of a rank is the same at every world size, so the ideal is N times the samples per second of solo "
        "(with emulated speeds: their sum, over solo's own). *Speed-up / ideal* needs N free cores to reach 100 %; *serial* "
        "is Karp and Flatt's fraction (1/S − 1/N) / (1 − 1/N), N the ideal: what part of the work seems not to be shared, "
        "0 is perfect, and growing with N it is cost of communication. *Efficiency* is held against the speed that the "
        "ranks had in the same run, oversubscribed or not; *steady* leaves out the controller's calibration and the end."
    )
    return told(Heading("Scaling, weak"), Text(intro), parts, pen.rest) if parts else []


def _row(rival: Rival) -> dict[str, str]:
    cell, speedup = rival.cell, rival.speedup
    return {
        "mode": plain(cell.marked),
        "ranks": str(cell.about.world_size),
        "n": str(cell.speed.n),
        "samples/s": fixed(cell.speed, 0),
        "speed-up over solo": f"{speedup:.2f}" if speedup is not None else NONE,
        "ideal": f"{ideal(rival):g}",
        "speed-up / ideal": f"{100 * speedup / ideal(rival):.0f} %" if speedup is not None else NONE,
        "serial": serial(speedup, ideal(rival)),
        "efficiency": percent(rival.efficiency),
        "steady": percent(rival.steady, 1),
    }


def _figure(page: Page, workload: Workload, shown: list[Rival]) -> Picture | None:
    """Emulated devices, scripted faults and cohorts that shrank are in the table only."""
    points = [point for rival in shown if not rival.distorted and (point := SpeedupPoint.of(rival)) is not None]
    title = f"Weak scaling: {page.title(workload)}"
    return draw(page, points, page.slug("scaling", workload), title, page.cores(shown[0].cell))
