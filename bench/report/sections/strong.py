"""Strong scaling: the same global batch cut over more ranks, against the one rank that takes it whole."""

from __future__ import annotations

from typing import NamedTuple

from bench.cells import Cell, Workload
from bench.figures import plural
from bench.report.blocks import Block, Heading, Picture, Text, plain, told
from bench.report.compare import Rival, gap
from bench.report.page import NONE, Page, fixed, table
from bench.report.sections.speedup import Point, draw, serial


class Task(NamedTuple):
    """What stays the same however many ranks there are."""

    model: str
    data: str
    recipe: str
    epochs: int
    global_batch: int
    lr: float

    @staticmethod
    def of(cell: Cell) -> Task:
        """The task of a cell, whose workload has the batch of one rank."""
        w: Workload = cell.workload
        return Task(w.model, w.data, w.recipe, w.epochs, w.batch_size * cell.about.world_size, w.lr)


def section(page: Page) -> list[Block]:
    """A figure and a table for each task that one rank and several ranks were given."""
    parts: list[Block] = []
    pen = page.pen
    for number, (task, found) in enumerate(tasks(page.cells).items(), 1):
        rows = [Rival(cell, found[0]) for cell in found]
        title = f"{task.model} on {task.data}, global batch {task.global_batch}, {plural(task.epochs, 'epoch')}"
        parts += told(
            Heading(plain(title), 3),
            pen.draw(lambda rows=rows, title=title, number=number: _figure(page, rows, title, number)),  # type: ignore[misc]
            table([_row(rival) for rival in rows]),
        )
    intro = (
        "The global batch is the same for any number of ranks (`train.global_batch_size`), so each rank's share of a step "
        "shrinks and communication does not. *Speed-up* is over one rank with the same global batch; the ideal is the "
        "number of ranks, if there is a free core for each. *Serial* is Karp and Flatt's fraction: what part of the work "
        "seems not to be shared."
    )
    return told(Heading("Strong scaling"), Text(intro), parts, pen.rest) if parts else []


def _figure(page: Page, rows: list[Rival], title: str, number: int) -> Picture | None:
    points = [point for rival in rows if (point := Point.of(rival)) is not None]
    return draw(page, points, f"strong-{number}", f"Strong scaling: {title}", page.cores(rows[0].cell))


def tasks(cells: tuple[Cell, ...]) -> dict[Task, list[Cell]]:
    """Cells without emulated devices and scripted faults by task, the reference first: one rank, finished. Tasks without a
    reference, or with nothing else, are left out."""
    groups: dict[Task, list[Cell]] = {}
    for cell in cells:
        if cell.speed.mean and not cell.about.emulated_speeds and not cell.about.scripted_faults:
            groups.setdefault(Task.of(cell), []).append(cell)
    found = {}
    for task, group in groups.items():
        group.sort(key=lambda cell: (not cell.is_solo, cell.about.mode, cell.about.world_size))
        if group[0].is_solo and any(cell.about.world_size > 1 for cell in group):
            found[task] = group
    return found


def _row(rival: Rival) -> dict[str, str]:
    cell, speedup, size = rival.cell, rival.speedup, rival.cell.about.world_size
    return {
        "mode": plain(cell.marked),
        "ranks": str(size),
        "batch of a rank": str(cell.workload.batch_size),
        "n": str(cell.speed.n),
        "samples/s": fixed(cell.speed, 0),
        "speed-up": f"{speedup:.2f}" if speedup is not None else NONE,
        "speed-up / ideal": f"{100 * speedup / size:.0f} %" if speedup is not None else NONE,
        "serial": serial(speedup, size),
        "against solo": gap(rival.behind, cell.about.final.eval_metric),
    }
