"""The verdict on one cell for a page: the gravest name, and what all of them come to in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.results.cells import Cell


def cell_verdict(cell: Cell, baselines: Path) -> dict[str, Any]:
    """Return `name` and `words`, as the terminal has them."""
    from bench.command.summary import in_words
    from bench.report.answer import gravest
    from bench.validate import judge_cells

    verdicts = judge_cells([cell], [], baselines).verdicts
    worst = gravest(verdicts).get(cell.name)
    name = worst.name if worst is not None else "PASS" if verdicts else "-"
    return {"name": name, "words": in_words(verdicts)[0]}
