"""Ranks that became slow during a run for a reason other than the load of their machine."""

from __future__ import annotations

from bench.report.blocks import Block, Bullets, Heading, nonempty, plain
from bench.report.page import Page
from bench.results.analysis.slow import sentence
from ddp.core.anomalies.slowness import HOST


def section(page: Page) -> list[Block]:
    """Return a line for each slow rank; [] if there are none. Slowness caused by the machine is reported as a warning
    of the run instead."""
    lines = tuple(
        f"{plain(f'{run.metrics.model} {cell.label}')}, seed {run.metrics.seed}: {sentence(row)}"
        for cell in page.cells
        for run in cell.runs
        for row in run.metrics.slow_ranks or ()
        if row.cause != HOST
    )
    return nonempty(Heading("Slow ranks"), Bullets(lines)) if lines else []
