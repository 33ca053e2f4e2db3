"""The verdict on each cell for a page: the name of its gravest verdict, and a sentence on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.results.cells import Cell


def cell_verdicts(cells: Sequence[Cell], baselines: Path) -> dict[str, dict[str, Any]]:
    """Return cell name -> `name` and `words` of its verdict, as the terminal shows them. Judges the cells together; a
    verdict on the baselines counts for every cell."""
    from bench.command.printed.summary import in_words
    from bench.report.page_one.answer import GRAVEST
    from bench.validate import judge_cells

    every = judge_cells(cells, [], baselines).verdicts
    owners = {owner: cell.name for cell in cells for owner in (cell.name, *(run.path.name for run in cell.runs))}
    by_name = {}
    for cell in cells:
        verdicts = [verdict for verdict in every if owners.get(verdict.cell, cell.name) == cell.name]
        bad = [name for name in GRAVEST if any(verdict.name == name for verdict in verdicts)]
        name = bad[0] if bad else "PASS" if verdicts else "-"
        by_name[cell.name] = {"name": name, "words": in_words(verdicts)[0]}
    return by_name
