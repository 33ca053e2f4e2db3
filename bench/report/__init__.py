"""The report: Markdown, HTML and PNG for one run or a tree of runs. Reads run folders only; imports no torch.

Equal run folders give an equal report, byte for byte. Each section is a file of `bench.report.sections`; it returns
blocks, which `markdown` and `html` render.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from bench.base.paths import judged_by
from bench.base.style import styled
from bench.base.usage import writing
from bench.base.writing import write_text
from bench.report import html, markdown, run_cache
from bench.report.page import Page
from bench.report.sections import SECTIONS
from bench.results.cells import Cell, cells
from bench.results.planned import planned
from bench.results.runfolder import find_runs
from bench.validate import Judgement, Tree, judge_cells
from bench.validate.baselines.folder import Library, load
from bench.validate.evidence.consistency import sound
from ddp import registries


def write_report(
    root: Path,
    out: Path,
    *,
    baseline: Path | None = None,
    previous: Path | None = None,
    experiment: str | None = None,
    presets: Path | None = None,
    tree: Tree | None = None,
    self_contained: bool = False,
) -> Path:
    """Write the report on the runs in `root` into the folder `out`: `report.md`, `report.html`, figures and their data.

    `baseline`: file or folder of baselines; adds the verdicts. `previous`: an earlier tree; adds the changes since.
    `experiment`: name of the planned experiment; None: the experiment that writes into `root`, if any. `presets`: see
    `planned`. `tree`: the content of `root`, if it was read already. `self_contained`: no links to run folders. Returns
    the path of `report.md`. Raises ValueError if a tree is no folder, the experiment is not known, or `out` cannot be
    written; OSError if there is no room.
    """
    registries.sound("section", SECTIONS)
    grouped, problems = _read(root, tree)
    unreadable = [(root.name, problem) for problem in problems]
    earlier = None
    if previous is not None:
        earlier, broken = _read(previous)
        problems += [f"of the earlier tree: {problem}" for problem in broken]
    plan = planned(root, experiment, presets=presets)
    with writing(f"the report to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        library = load(*judged_by(baseline)) if baseline else Library()
        verdict = judged(grouped, unreadable, baseline) if baseline else Judgement([], [])
        grouped, problems = _without(grouped, verdict.refused), [*problems, *verdict.refused.values()]
        page = Page(
            root, out, grouped, tuple(problems), tuple(verdict.verdicts), library, earlier, plan, self_contained
        )
        with styled():
            blocks = [block for section in SECTIONS.values() for block in section(page)]
        path = out / "report.md"
        write_text(path, markdown.render(blocks))
        write_text(out / "report.html", html.render(blocks, out, "Benchmark report"))
    return path


def judged(grouped: Sequence[Cell], unreadable: Sequence[tuple[str, str]], baseline: Path) -> Judgement:
    """Judge cells already read; reads the records only of runs that earlier reports did not read."""
    with run_cache.cached() as derivation:
        return judge_cells(grouped, unreadable, baseline, derivation=derivation)


def _without(grouped: Sequence[Cell], refused: Collection[Path]) -> tuple[Cell, ...]:
    """Leave out runs, and cells of which no run is left: no figure may come from what was not judged."""
    kept = (replace(cell, runs=tuple(run for run in cell.runs if run.path not in refused)) for cell in grouped)
    return tuple(cell for cell in kept if cell.runs)


def _read(root: Path, tree: Tree | None = None) -> tuple[tuple[Cell, ...], list[str]]:
    """Return the cells of a tree, and a line for each folder that cannot be read."""
    runs, unreadable = tree or find_runs(root)
    kept, unsound = sound(runs)
    return tuple(cells(kept)), [*unreadable, *(text for _, text in unsound)]
