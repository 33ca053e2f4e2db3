"""Communication between ranks: how often, how many bytes, how long, and whether the bytes agree with the formula of the
backend."""

from __future__ import annotations

from collections.abc import Callable

from bench.report.blocks import Block, plain
from bench.report.measures.compare import mean_share
from bench.report.page import CellGroup, Page, count, number, percent, size, table
from bench.results.cells import Cell, Sample
from bench.results.runfolder import Run
from bench.validate.checks.volume import formula

INTRO = (
    "Means over the n finished runs. *Meetings* are rounds of averaging, or collectives inside the steps where "
    "gradients are averaged; *ms* is the time of one, on the wire or in averaging snapshots, its median and 95th "
    "percentile. *Bytes* are the payload that all ranks hand over; *of formula*: over meetings × ranks × parameters × "
    "width, which leaves out buffers and bookkeeping (no formula: collectives that PyTorch hides, lost ranks). *Apart*: "
    "how far replicas were from their average before it, relative to it, median. *Meetings* and *bytes* leave out resumed "
    "runs. – means not measured."
)


def section(page: Page) -> list[Block]:
    """Return a table for each workload that was trained on more than one rank."""
    return page.section("Communication", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    rows = [_row(cell) for cell in group.cells if cell.about.world_size > 1 and cell.ok]
    return [table(rows)] if rows else []


def _row(cell: Cell) -> dict[str, str]:
    runs = [run for run in cell.counted if run.metrics.status == "ok"]

    def mean(value: Callable[[Run], float | None]) -> float | None:
        return Sample.of([value(run) for run in runs]).mean

    bytes_sent = cell.total(lambda m: float(m.sync.bytes)) if any(run.metrics.sync.count for run in runs) else None
    return {
        "mode": plain(cell.marked),
        "n": str(len(runs)),
        "what": "/".join(sorted({run.metrics.sync.kind for run in runs})),
        "meetings": count(cell.total(lambda m: float(m.sync.count))),
        "bytes": size(bytes_sent),
        "bytes of one": size(mean(lambda run: _ratio(run.metrics.sync.bytes, run.metrics.sync.count))),
        "of formula": percent(mean(lambda run: _ratio(run.metrics.sync.bytes, formula(run))), 1),
        "ms p50": number(mean(lambda run: run.metrics.sync.ms_p50 if run.metrics.timing else None)),
        "ms p95": number(mean(lambda run: run.metrics.sync.ms_p95 if run.metrics.timing else None)),
        "apart": number(mean(lambda run: run.metrics.sync.divergence_p50), 2),
        "time in comm": percent(cell.sample(lambda m: mean_share(m, "comm")), 1),
    }


def _ratio(value: float, base: float | None) -> float | None:
    return value / base if base else None
