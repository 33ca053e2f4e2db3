"""Strong scaling: the same global batch cut over more ranks, against the one rank that takes it whole."""

from __future__ import annotations

from bench.base.figures import plural
from bench.report.blocks import Block, Heading, Picture, Text, plain, told
from bench.report.compare import Rival, gap
from bench.report.page import NONE, Page, fixed, table
from bench.report.sections.speedup import SpeedupPoint, draw, serial
from bench.results.cells import Cell, Workload


def task_of(cell: Cell) -> Workload:
    """What stays the same however many ranks there are: the workload, with the batch of all of them for that of one."""
    return cell.workload._replace(batch_size=cell.workload.batch_size * cell.about.world_size)


def section(page: Page) -> list[Block]:
    """A figure and a table for each task that one rank and several ranks were given."""
    parts: list[Block] = []
    pen = page.pen
    for number, (task, found) in enumerate(tasks(page.cells).items(), 1):
        rows = [Rival(cell, found[0]) for cell in found]
        depth = f" of depth {task.depth}" if task.depth else ""
        title = f"{task.model}{depth} on {task.data}, global batch {task.batch_size}, {plural(task.epochs, 'epoch')}"
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
    points = [point for rival in rows if (point := SpeedupPoint.of(rival)) is not None]
    return draw(page, points, f"strong-{number}", f"Strong scaling: {title}", page.cores(rows[0].cell))


def tasks(cells: tuple[Cell, ...]) -> dict[Workload, list[Cell]]:
    """Cells without emulated devices and scripted faults by task, the reference first: one rank, finished. Tasks without a
    reference, or with nothing else, are left out."""
    groups: dict[Workload, list[Cell]] = {}
    for cell in cells:
        if cell.speed.mean and not cell.about.emulated_speeds and not cell.about.scripted_faults:
            groups.setdefault(task_of(cell), []).append(cell)
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
