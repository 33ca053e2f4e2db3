"""The timeline pictures of the runs: shown for a single run, linked for many."""

from __future__ import annotations

import shutil

from bench.report.blocks import Block, Heading, Picture, Text, plain, told
from bench.report.page import Page, more, table

LINKS = 100
"""Runs whose pictures are linked."""
KINDS = {"picture": ("timeline.png", "png"), "page": ("timeline.html", "html"), "trace": ("timeline.json", "json")}


def section(page: Page) -> list[Block]:
    """Links to what lies in the run folders."""
    runs = [(cell, run) for cell in page.cells for run in cell.runs]
    how = "`timeline.json` opens in Perfetto (ui.perfetto.dev)."
    if len(runs) == 1 and (runs[0][1].path / "timeline.png").exists():
        cell, run = runs[0]
        alt = f"Timeline of {run.metrics.model} {cell.label}: every rank's time by kind, the whole run and a close-up"
        if run.path.resolve() != page.out.resolve():
            shutil.copyfile(run.path / "timeline.png", page.out / "timeline.png")
        trace = page.link(run.path / "timeline.json")
        return told(Heading("Timeline"), Picture("timeline.png", alt), Text(f"{how} [Trace]({trace})"))
    rows: list[dict[str, str]] = []
    left = 0
    for cell, run in runs:
        if len(rows) == LINKS:
            left += 1
            continue
        there = {name: run.path / file for name, (file, _) in KINDS.items() if (run.path / file).exists()}
        if there:
            links = {
                name: f"[{kind}]({page.link(there[name])})" if name in there else "–"
                for name, (_, kind) in KINDS.items()
            }
            about = {"model": plain(run.metrics.model), "mode": plain(cell.label), "seed": str(run.metrics.seed)}
            rows.append({**about, **links})
    if not rows:
        return []
    how += " Links lead to the run folders, as they lay when the report was written."
    return told(Heading("Timelines"), Text(how), table(rows, left=6), more(left, "run"))
