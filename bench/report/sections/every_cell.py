"""The tables of page one without its limit on rows: every way of training."""

from __future__ import annotations

from bench.report.blocks import Block, Facts, Heading, Text, nonempty, plain
from bench.report.page import Page, more
from bench.report.page_one.answer import answer
from bench.report.page_one.frontier import numbered
from bench.report.page_one.questions import facts
from bench.report.page_one.scaling_series import answered, first, scaling
from bench.report.page_one.sentence import sentence
from bench.report.sections.answer import EVERY, rows_of, table

MOST = 100
"""Most ways of training in the table of a workload."""
INTRO = (
    "Sorted: what did not pass, what is proved sooner than one device, what is not shown to be, what is later; within each "
    "by time. Times and speeds are those of undisturbed runs, where there are two of them."
)


def section(page: Page) -> list[Block]:
    """Return what does not fit on page one: all rows of each workload; and of several workloads the answers and
    questions of those that page one does not answer as a series."""
    several, studied = len(page.workloads) > 1, answered(page, first(scaling(page)))
    parts: list[Block] = []
    for workload, cells in page.workloads.items():
        each = answer(page, cells)
        if each.options and each.why != "no solo" and (several or len(each.options) > len(rows_of(each, several))):
            open_ = several and workload not in studied
            known = facts(cells, each) if open_ else ()
            lead = Text(sentence(page, workload, cells, each)) if open_ else None
            rest = more(len(each.options) - MOST, "way")
            numbers = range(1, MOST + 1) if numbered(each) else ()
            rows = table(page, each.options[:MOST], numbers=numbers)
            parts += nonempty(Heading(plain(page.title(workload)), 3), lead, Facts(known), rows, rest)
    return [Heading(EVERY), Text(INTRO), *parts] if parts else []
