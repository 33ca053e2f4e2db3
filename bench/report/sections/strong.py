"""Strong scaling: the same global batch cut over more ranks, against the one rank that takes it whole."""

from __future__ import annotations

from collections import defaultdict

from bench.base.figures import plural
from bench.report.blocks import Block, Text, plain
from bench.report.compare import Rival, gap, wires
from bench.report.page import CellGroup, Page, table
from bench.report.sections.speedup import columns, draw
from bench.results.cells import Cell, Workload


def task_of(cell: Cell) -> Workload:
    """Return what is the same for any number of ranks: the workload, with the batch of all of them for that of one."""
    return cell.workload._replace(batch_size=cell.workload.batch_size * cell.about.world_size)


INTRO = (
    "The global batch is the same for any number of ranks (`train.global_batch_size`), so each rank's share of a step "
    "shrinks and communication does not. *Speed-up* is over one rank with the same global batch; the ideal is the "
    "number of ranks, if there is a free core for each. *Serial* is Karp and Flatt's fraction: what part of the work "
    "seems not to be shared."
)


def section(page: Page) -> list[Block]:
    """Return a figure and a table for each task that one rank and several ranks were given."""
    groups = tasks(page.cells)
    number = {task: number for number, task in enumerate(groups, 1)}

    def part(group: CellGroup) -> list[Block]:
        rows = [Rival(cell, group.cells[0]) for cell in group.cells]
        name, title = f"strong-{number[group.workload]}", f"Strong scaling: {group.title}"
        cores = page.cores(group.cells[0])
        pictures = group.draw(lambda _, rows: draw(page, rows, name, title, cores), rows)
        return [*pictures, table(map(_row, rows)), Text(wires(rows))]

    return page.section("Strong scaling", INTRO, part, [(_title(task), task, cells) for task, cells in groups.items()])


def _title(task: Workload) -> str:
    depth = f" of depth {task.depth}" if task.depth else ""
    return f"{task.model}{depth} on {task.data}, global batch {task.batch_size}, {plural(task.epochs, 'epoch')}"


def tasks(cells: tuple[Cell, ...]) -> dict[Workload, list[Cell]]:
    """Group cells without emulated devices and scripted faults by task, the reference first: one rank, finished. Tasks
    without a reference, or with nothing else, are left out."""
    groups: dict[Workload, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.speed.mean and not cell.about.emulated_speeds and not cell.about.scripted_faults:
            groups[task_of(cell)].append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: (not cell.is_solo, cell.about.mode, cell.about.world_size))
    return {t: g for t, g in groups.items() if g[0].is_solo and any(cell.about.world_size > 1 for cell in g)}


def _row(rival: Rival) -> dict[str, str]:
    cell, size = rival.cell, rival.cell.about.world_size
    return {
        "mode": plain(cell.marked),
        "ranks": str(size),
        "batch of a rank": str(cell.workload.batch_size),
        **columns(rival, "speed-up", size),
        "against solo": gap(rival.behind, cell.about.final.eval_metric),
    }
