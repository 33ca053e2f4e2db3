"""The commands that reproduce the runs of the report."""

from __future__ import annotations

from bench.base.number_format import plural
from bench.report.blocks import Block, Code, Heading, Text, nonempty
from bench.report.page import Page, more
from bench.results.rerun_command import commands, script_of

COMMANDS = 200
"""Most cells whose command is printed."""


def section(page: Page) -> list[Block]:
    """Return the commands that train all seeds of each cell that was trained."""
    cells = [cell for cell in page.cells if cell.about.source != "predicted"]
    if not cells:
        return []
    lines = [" ".join(line.splitlines()) for cell in cells[:COMMANDS] for line in commands(cell.runs)]
    scripts = ", or for each call of a script" if any(script_of(cell.runs[0]) for cell in cells) else ""
    return nonempty(
        Heading("Reproduce"),
        Text(
            f"One line for each cell{scripts}, with all its seeds "
            f"({plural(sum(len(cell.runs) for cell in cells), 'run')} in all):"
        ),
        Code("\n".join(lines)),
        more(len(cells) - COMMANDS, "cell", "`config.json` in a run folder has all that is needed"),
    )
