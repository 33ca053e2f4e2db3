"""Strong scaling: one global batch is divided among more ranks, compared with one rank that trains it alone."""

from __future__ import annotations

from bench.base.number_format import plural
from bench.report.blocks import Block, Text, plain
from bench.report.measures.compare import Rival, gap, in_points, legend, wires
from bench.report.page import CellGroup, Page, table
from bench.report.page_one.scaling_series import tasks
from bench.report.sections.speedup import columns, draw
from bench.results.cells import Workload

INTRO = (
    "The global batch is the same for any number of ranks (`train.global_batch_size`), so each rank's share of a step "
    "shrinks and communication does not. *Speed-up* is over one rank with the same global batch; the ideal is the "
    "number of ranks, if there is a free core for each. *Serial* is Karp and Flatt's fraction: what part of the work "
    "seems not to be shared."
)


def section(page: Page) -> list[Block]:
    """Return a figure and a table for each task that was trained on one rank and on several."""
    groups = tasks(page.cells)
    number = {task: number for number, task in enumerate(groups, 1)}

    def part(group: CellGroup) -> list[Block]:
        rows = [Rival(cell, group.cells[0]) for cell in group.cells]
        scaled = [rival for rival in rows if not rival.distorted]
        name, title = f"strong-{number[group.workload]}", f"Strong scaling: {group.title}"
        cores = page.cores(group.cells[0])
        pictures = group.draw(lambda _, scaled: draw(page, scaled, name, title, cores), scaled)
        return [*pictures, table(map(_row, rows)), Text(legend(rows)), Text(wires(rows))]

    return page.section("Strong scaling", INTRO, part, [(_title(task), task, cells) for task, cells in groups.items()])


def _title(task: Workload) -> str:
    depth = f" of depth {task.depth}" if task.depth else ""
    return f"{task.model}{depth} on {task.data}, global batch {task.batch_size}, {plural(task.epochs, 'epoch')}"


def _row(rival: Rival) -> dict[str, str]:
    cell, final, size = rival.cell, rival.cell.about.final, rival.cell.about.world_size
    return {
        "mode": plain(cell.marked),
        "ranks": str(size),
        "batch of a rank": str(cell.workload.batch_size),
        **columns(rival, "speed-up", size),
        "against solo": gap(rival.behind, final.eval_metric, final.higher_is_better, in_points(cell, rival.solo)),
    }
