"""Pictures of the timelines: shown if the report is on a single run, else linked."""

from __future__ import annotations

from bench.report.blocks import Block, Heading, Picture, Text, nonempty, plain
from bench.report.page import NONE, Page, listed, more, table
from bench.results.cells import Cell
from bench.results.runfolder import Run, located, there
from ddp import regular_files

LINKS = 100
"""Most runs whose pictures are linked."""
PICTURE = "timeline.png"
KINDS = {"picture": (PICTURE, "png"), "page": ("timeline.html", "html"), "trace": ("timeline.json", "json")}


def section(page: Page) -> list[Block]:
    """Return links to the timeline files in the run folders, on a self-contained page only their names; of a single run,
    its picture."""
    runs = [(cell, run) for cell in page.cells for run in cell.runs]
    how = "`timeline.json` opens in Perfetto (ui.perfetto.dev)."
    if len(runs) == 1 and there(runs[0][1].path / PICTURE):
        cell, run = runs[0]
        places = [(name, run.path / KINDS[name][0]) for name in ("page", "trace")]
        ways = " · ".join(f"[{name}]({page.link(path)})" for name, path in places if there(path))
        return [Heading("Timeline"), _picture(page, cell, run), Text(how if page.self_contained else f"{how} {ways}")]
    if page.self_contained:
        return _named(runs, how)
    rows: list[dict[str, str]] = []
    left = 0
    for cell, run in runs:
        if len(rows) == LINKS:
            left += 1
            continue
        files = {name: (kind, run.path / file) for name, (file, kind) in KINDS.items()}
        links = {name: f"[{kind}]({page.link(path)})" if there(path) else NONE for name, (kind, path) in files.items()}
        if set(links.values()) != {NONE}:
            about = {"model": plain(run.metrics.model), "mode": plain(cell.label), "seed": str(run.metrics.seed)}
            rows.append({**about, **links})
    if not rows:
        return []
    how += " Links lead to the run folders, as they lay when the report was written."
    return nonempty(Heading("Timelines"), Text(how), table(rows, left=6), more(left, "run"))


def _named(runs: list[tuple[Cell, Run]], how: str) -> list[Block]:
    """Return the names of the files that run folders have; [] if none has any."""
    names = [file for file, _ in KINDS.values() if any(there(run.path / file) for _, run in runs)]
    if not names:
        return []
    files = listed(f"`{name}`" for name in names)
    return [Heading("Timelines"), Text(f"The run folders, which are not part of this page, have {files}. {how}")]


def _picture(page: Page, cell: Cell, run: Run) -> Picture | Text:
    """Copy the picture of the run beside the report and return it, or return a text that says why it is left out."""
    alt = f"Timeline of {run.metrics.model} {cell.label}: every rank's time by kind, the whole run and a close-up"
    try:
        if run.path.resolve() == page.out.resolve():
            regular_files.opened(run.path / PICTURE, regular_files.DOCUMENT).close()
        else:
            regular_files.copy(run.path / PICTURE, page.out / PICTURE, regular_files.DOCUMENT)
    except OSError as error:
        return Text(f"Its picture is left out: {plain(located(error))}.")
    return Picture(PICTURE, alt)
