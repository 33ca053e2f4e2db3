"""All cells of a workload in one table, the best final metric first, with solo among them."""

from __future__ import annotations

from bench.report.blocks import Block, Text, plain
from bench.report.measures.compare import Rival, gap, in_points, legend, mean_share, rivals, wires
from bench.report.measures.timing import Timing
from bench.report.page import CellGroup, Page, count, levels, number, percent, speeds, table, times

INTRO = (
    "Means over the n seeds of a cell that finished, ± is their standard deviation. *Gap*: final metric less solo's. "
    "*× solo*: samples per second over solo's, of geometric means over the undisturbed seeds. *Vs alone*: samples per "
    "second over the sum of what the ranks would do if they never waited nor communicated, measured in the same run; "
    "*steady*: the same without the controller's calibration and the last round, and with the time between a rank's steps "
    "counted as work (–: the run is too short). *Waiting*: share of the ranks' wall time. *Syncs* and *train s* leave out "
    "resumed runs."
)


def section(page: Page) -> list[Block]:
    """Return one table for each workload."""
    return page.section("Comparison", INTRO, _part)


def _part(group: CellGroup) -> list[Block]:
    ranked = sorted(rivals(group.cells), key=_rank)
    return [table(map(_row, ranked), left=2), Text(legend(ranked)), Text(wires(ranked))]


def _rank(rival: Rival) -> tuple[bool, float, str]:
    mean = rival.cell.eval.mean
    sign = -1.0 if rival.cell.about.final.higher_is_better else 1.0
    return mean is None, sign * (mean or 0.0), rival.cell.label


def _row(rival: Rival) -> dict[str, str]:
    cell, final = rival.cell, rival.cell.about.final
    metric, points = final.eval_metric, in_points(cell, rival.solo)
    return {
        "mode": f"**{plain(cell.label)}**" if cell.is_solo else plain(cell.marked),
        "status": cell.status,
        "n": str(len(cell.one_each)),
        f"final {plain(metric)}": levels(cell.eval),
        "gap to solo": gap(rival.behind, metric, final.higher_is_better, points)
        if cell is not rival.solo
        else "reference",
        "samples/s": speeds(Timing.of(cell).speed),
        "× solo": times(rival.speedup),
        "vs alone": percent(rival.efficiency),
        "steady": percent(rival.steady, 1),
        "syncs": count(cell.total(lambda m: float(m.sync.count))),
        "sync ms p50": number(cell.sample(lambda m: m.sync.ms_p50 if m.timing else None).mean),
        "waiting": percent(cell.sample(lambda m: mean_share(m, "wait"))),
        "train s": number(cell.total(lambda m: m.time_s.train if m.timing else None)),
    }
