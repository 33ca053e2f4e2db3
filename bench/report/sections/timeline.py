"""The timeline pictures of the runs: shown for a single run, linked for many."""

from __future__ import annotations

from bench.report.page import Page, table


def section(page: Page) -> str:
    """Links to what lies in the run folders."""
    runs = [(cell, run) for cell in page.cells for run in cell.runs]
    drawn = [(cell, run) for cell, run in runs if (run.path / "timeline.png").exists()]
    how = "`timeline.json` opens in [Perfetto](https://ui.perfetto.dev)."
    if len(runs) == 1 and drawn:
        cell, run = drawn[0]
        picture = page.link(run.path / "timeline.png")
        alt = f"Timeline of {run.metrics.model} {cell.label}: every rank's time by kind, the whole run and a close-up"
        trace = page.link(run.path / "timeline.json")
        return f"## Timeline\n\n![{alt}]({picture})\n\n{how} [Trace]({trace})"
    if not drawn:
        return ""
    rows = [
        {
            "model": run.metrics.model,
            "mode": cell.label,
            "seed": str(run.metrics.seed),
            "picture": f"[png]({page.link(run.path / 'timeline.png')})",
            "trace": f"[json]({page.link(run.path / 'timeline.json')})",
        }
        for cell, run in drawn
    ]
    return f"## Timelines\n\n{how}\n\n{table(rows, left=5)}"
