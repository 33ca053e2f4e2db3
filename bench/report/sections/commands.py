"""The commands that reproduce the runs of the report."""

from __future__ import annotations

from bench.base.number_format import plural
from bench.report.blocks import Block, Code, Heading, Text, nonempty
from bench.report.page import Page, more
from bench.results.rerun_command import command

COMMANDS = 200
"""Most cells whose command is printed."""


def section(page: Page) -> list[Block]:
    """Return one command for each cell that was trained, which trains all its seeds."""
    cells = [cell for cell in page.cells if cell.about.source != "predicted"]
    if not cells:
        return []
    commands = "\n".join(" ".join(command(cell.runs).splitlines()) for cell in cells[:COMMANDS])
    return nonempty(
        Heading("Reproduce"),
        Text(
            f"One line for each cell, with all its seeds ({plural(sum(len(cell.runs) for cell in cells), 'run')} in all):"
        ),
        Code(commands),
        more(len(cells) - COMMANDS, "cell", "`config.json` in a run folder has all that is needed"),
    )
