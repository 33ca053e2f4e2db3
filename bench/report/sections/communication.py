"""What ranks sent each other: how often, how much, how long it took, and whether it is what the way of training needs."""

from __future__ import annotations

from collections.abc import Callable

from bench.report.blocks import Block, Heading, Text, plain, told
from bench.report.page import NONE, Page, count, number, percent, table
from bench.results.cells import Cell, Sample
from bench.results.runfolder import Run
from bench.validate.checks.volume import formula


def section(page: Page) -> list[Block]:
    """A table for each workload with more than one rank."""
    parts: list[Block] = []
    for workload, found in page.workloads.items():
        rows = [_row(cell) for cell in found if cell.about.world_size > 1 and cell.ok]
        if rows:
            parts += [Heading(plain(page.title(workload)), 3), table(rows)]
    intro = (
        "Means over the n finished runs. *Meetings* are rounds of averaging, or collectives inside the steps where "
        "gradients are averaged; *ms* is the time of one, on the wire or in averaging snapshots, its median and 95th "
        "percentile. *Bytes* are the payload that all ranks hand over; *of formula*: over meetings × ranks × parameters × "
        "width, which leaves out buffers and bookkeeping (no formula: collectives that PyTorch hides, lost ranks). *Apart*: "
        "how far replicas were from their average before it, relative to it, median. – means not measured."
    )
    return told(Heading("Communication"), Text(intro), parts) if parts else []


def _row(cell: Cell) -> dict[str, str]:
    found = [run for run in cell.counted if run.metrics.status == "ok"]

    def mean(value: Callable[[Run], float | None]) -> Sample:
        return Sample.of([value(run) for run in found])

    kinds = sorted({m.sync.kind for m in cell.one_each})
    seen = any(m.sync.count for m in cell.one_each)
    return {
        "mode": plain(cell.marked),
        "n": str(len(cell.one_each)),
        "what": "/".join(kinds),
        "meetings": count(mean(lambda run: float(run.metrics.sync.count)).mean),
        "bytes": _bytes(mean(lambda run: float(run.metrics.sync.bytes)).mean) if seen else NONE,
        "bytes of one": _bytes(mean(_each).mean),
        "of formula": percent(mean(_of_formula), 1),
        "ms p50": number(mean(lambda run: run.metrics.sync.ms_p50).mean),
        "ms p95": number(mean(lambda run: run.metrics.sync.ms_p95).mean),
        "apart": number(mean(lambda run: run.metrics.sync.divergence_p50).mean, 2),
        "time in comm": percent(mean(_share), 1),
    }


def _each(run: Run) -> float | None:
    sync = run.metrics.sync
    return sync.bytes / sync.count if sync.count else None


def _of_formula(run: Run) -> float | None:
    expected = formula(run)
    return run.metrics.sync.bytes / expected if expected else None


def _share(run: Run) -> float | None:
    ranks = run.metrics.breakdown
    return sum(rank.comm for rank in ranks) / len(ranks) if ranks else None


def _bytes(value: float | None) -> str:
    if value is None:
        return NONE
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"
