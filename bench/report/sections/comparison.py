"""All cells of a workload in one table, best final metric first; solo is in the ranking."""

from __future__ import annotations

from bench.report.blocks import Block, Heading, Text, plain, told
from bench.report.compare import Rival, dagger, gap, rivals
from bench.report.page import NONE, Page, count, fixed, levels, number, percent, table
from bench.results.schema import Metrics


def section(page: Page) -> list[Block]:
    """One table for each workload."""
    parts: list[Block] = []
    for workload, found in page.workloads.items():
        ranked = sorted(rivals(found), key=_rank)
        rows = [_row(rival) for rival in ranked]
        parts += told(Heading(plain(page.title(workload)), 3), table(rows, left=2), Text(dagger(ranked)))
    legend = (
        "Means over the n finished runs of a cell, ± is the standard deviation over seeds. *Gap*: final metric less "
        "solo's. *Efficiency*: samples per second over the sum of what the ranks would do if they never waited nor "
        "communicated, measured in the same run; *steady*: the same between the controller's calibration and the last "
        "round, where what a rank's loop does between its steps is its own work (– if the run is too short). *Waiting*: "
        "share of the ranks' wall time."
    )
    return told(Heading("Comparison"), Text(legend), parts) if parts else []


def _rank(rival: Rival) -> tuple[bool, float, str]:
    mean = rival.cell.eval.mean
    sign = -1.0 if rival.cell.about.final.higher_is_better else 1.0
    return mean is None, sign * (mean or 0.0), rival.cell.label


def _row(rival: Rival) -> dict[str, str]:
    cell = rival.cell
    metric = cell.about.final.eval_metric
    sync_ms = cell.sample(lambda m: m.sync.ms_p50)
    syncs = cell.sample(lambda m: float(m.sync.count))
    return {
        "mode": f"**{plain(cell.label)}**" if cell.is_solo else plain(cell.marked),
        "status": cell.status,
        "n": str(len(cell.one_each)),
        f"final {plain(metric)}": levels(cell.eval),
        "gap to solo": gap(rival.behind, metric) if cell is not rival.solo else "reference",
        "samples/s": fixed(cell.speed, 0),
        "× solo": f"{rival.speedup:.2f}" if rival.speedup is not None else NONE,
        "efficiency": percent(rival.efficiency),
        "steady": percent(rival.steady, 1),
        "syncs": count(syncs.mean),
        "sync ms p50": number(sync_ms.mean),
        "waiting": percent(cell.sample(_waiting)),
        "train s": number(cell.sample(lambda m: m.time_s.train).mean),
    }


def _waiting(metrics: Metrics) -> float | None:
    ranks = metrics.breakdown
    return sum(rank.wait for rank in ranks) / len(ranks) if ranks else None
