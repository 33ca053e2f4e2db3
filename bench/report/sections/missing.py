"""Runs that are missing: planned runs without a folder, folders that cannot be read, runs that did not finish, and seeds
that only other cells have."""

from __future__ import annotations

from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.report.blocks import Block, Heading, Text, plain
from bench.report.page import Page, bullets, listed
from bench.results.planned import PlannedExperiment


def section(page: Page) -> list[Block]:
    """Return a list for each kind of missing run, or one sentence if none is missing."""
    if not page.runs and page.planned is None:
        return []
    failed = [f"{plain(cell.name)}: {plain(cell.status)}" for cell in page.cells if len(cell.ok) < len(cell.runs)]
    unfinished = f"{plural(len(failed), 'cell')} with runs that did not finish (why: *Problems*, above):"
    blocks = [] if page.planned is None else _plan(page, page.planned)
    if page.problems:
        blocks.append(Text(f"{plural(len(page.problems), 'folder')} could not be read (why: *Problems*, above)."))
    blocks += [*_list(unfinished, failed), *(_fewer_seeds(page) if page.planned is None else [])]
    none = [Text("Every run that is here finished, and all cells of a workload have the same seeds.")]
    return [Heading("Missing and failed"), *(blocks or none)]


def _list(sentence: str, lines: list[str]) -> list[Block]:
    return [Text(sentence), *bullets(lines, "cell")] if lines else []


def _plan(page: Page, plan: PlannedExperiment) -> list[Block]:
    runs = [run for cell in page.cells for run in cell.runs]
    missing = plan.missing(runs)
    here = len(plan.points) - len(missing)
    text = f"Experiment *{plain(plan.experiment)}* plans {plural(len(plan.points), 'run')}: "
    text += f"{here} are here, **{len(missing)} missing**."
    groups = grouped((point[:3], str(point.seed)) for point in missing)
    lines = [
        f"{plain(model)} {plain(mode)} ×{size}: seed{'s' * (len(seeds) > 1)} {listed(seeds)}"
        for (model, mode, size), seeds in groups.items()
    ]
    if (extra := len({run.path for run in runs}) - here) > 0:
        text += f" {plural(extra, 'run')} more than planned {'is' if extra == 1 else 'are'} in the tree."
    return [Text(text), *bullets(lines, "cell")]


def _fewer_seeds(page: Page) -> list[Block]:
    """List the cells that lack finished seeds which another cell of the same workload has."""
    lines = []
    for cells in page.workloads.values():
        finished = {cell.name: {m.seed for m in cell.ok} for cell in cells}
        every = set().union(*finished.values())
        lines += [
            f"{plain(name)}: {plural(len(every - seeds), 'seed')} fewer ({len(seeds)} of {len(every)})"
            for name, seeds in finished.items()
            if every - seeds
        ]
    return _list("Cells with fewer finished seeds than others of their workload, whose means are less certain:", lines)
