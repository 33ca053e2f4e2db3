"""What should be there and is not: planned runs without a folder, runs that did not finish, seeds that other cells have."""

from __future__ import annotations

from collections import defaultdict

from bench.base.figures import plural
from bench.report.blocks import Block, Bullets, Heading, Text, plain, told
from bench.report.page import LINES, Page, listed, more


def section(page: Page) -> list[Block]:
    """Sentences and lists; one sentence if nothing is missing."""
    runs = [run for cell in page.cells for run in cell.runs]
    if not runs and page.planned is None:
        return []
    failed = [f"{plain(cell.name)}: {plain(cell.status)}" for cell in page.cells if len(cell.ok) < len(cell.runs)]
    blocks = told(
        _plan(page),
        Text(f"{plural(len(failed), 'cell')} with runs that did not finish (why: *Problems*, above):")
        if failed
        else None,
        Bullets(tuple(failed[:LINES])),
        more(len(failed) - LINES, "cell"),
        _seeds(page) if page.planned is None else None,
    )
    said = blocks or [Text("Every run that is here finished, and all cells of a workload have the same seeds.")]
    return [Heading("Missing and failed"), *said]


def _plan(page: Page) -> list[Block]:
    if page.planned is None:
        return []
    runs = [run for cell in page.cells for run in cell.runs]
    missing = page.planned.missing(runs)
    total = len(page.planned.points)
    name = plain(page.planned.experiment)
    said = f"Experiment *{name}* plans {plural(total, 'run')}: {total - len(missing)} are here, **{len(missing)} missing**."
    groups: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for point in missing:
        groups[point[:3]].append(str(point.seed))
    lines = [
        f"{plain(model)} {plain(mode)} ×{size}: seed{'s' * (len(seeds) > 1)} {listed(seeds)}"
        for (model, mode, size), seeds in groups.items()
    ]
    extra = len({run.path for run in runs}) - (total - len(missing))
    beyond = (
        f" {plural(extra, 'run')} more than planned {'is' if extra == 1 else 'are'} in the tree." if extra > 0 else ""
    )
    return told(Text(said + beyond), Bullets(tuple(lines[:LINES])), more(len(lines) - LINES, "cell"))


def _seeds(page: Page) -> list[Block]:
    """Cells that lack seeds which another cell of their workload has."""
    lines = []
    for found in page.workloads.values():
        finished = {cell.name: {m.seed for m in cell.ok} for cell in found}
        every = set().union(*finished.values())
        lines += [
            f"{plain(name)}: {plural(len(every - seeds), 'seed')} fewer ({len(seeds)} of {len(every)})"
            for name, seeds in finished.items()
            if every - seeds
        ]
    if not lines:
        return []
    said = Text("Cells with fewer finished seeds than others of their workload, whose means are less certain:")
    return told(said, Bullets(tuple(lines[:LINES])), more(len(lines) - LINES, "cell"))
