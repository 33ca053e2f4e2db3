"""Every cell: the rows of page one, all of them."""

from __future__ import annotations

from bench.report.blocks import Block, Heading, Text, Verdicts
from bench.report.page import Page, more
from bench.report.sections.answer import ROWS, every_option, row

MOST = 400
"""Cells that are shown."""
INTRO = (
    "What did not pass first, then by time to the target. *Time to target* and *samples/s* are over one device's, *quality* "
    "is the difference to the baseline, + is better."
)


def section(page: Page) -> list[Block]:
    """Return a table of all cells, where page one has not room for them."""
    options = every_option(page)
    if len(options) <= ROWS:
        return []
    table = Verdicts(tuple(row(page, option) for option in options[:MOST]), left=3)
    rest = more(len(options) - MOST, "cell")
    return [Heading("Every cell"), Text(INTRO), table, *([rest] if rest else [])]
