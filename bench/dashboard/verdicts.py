"""The verdicts on the cells of a tree, as they come: each cell is judged once, when one of its runs has finished.

Who judges is given from outside. Knows nothing of what verdicts say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.results.cells import Cell, cells
from bench.results.runfolder import Run

Judge = Callable[[Cell], dict[str, Any]]
"""Cell -> its verdict as plain data for JSON. May take a second."""
Made = tuple[tuple[str, Any], ...]
"""What tells a cell from what it was: its runs, and what changes with their results."""


class CellVerdicts:
    """The verdicts that are known."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._known: dict[Made, dict[str, Any]] = {}

    def next(self, finished: Mapping[str, tuple[Run, Any]]) -> list[tuple[str, dict[str, Any]]]:
        """Judge the first cell that is new, and return the verdict on each of its runs, by key; nothing: all are judged.

        `finished`: key -> a run with a result, and what changes when that does."""
        keys = {run.path: key for key, (run, _) in finished.items()}
        for cell in cells([run for run, _ in finished.values()]):
            own = [keys[run.path] for run in cell.runs]
            made = tuple((key, finished[key][1]) for key in own)
            if made in self._known:
                continue
            try:
                verdict = self._judge(cell)
            except Exception as error:  # a baseline may be damaged: that is said, and the page goes on
                verdict = {"name": "REFUSED", "words": f"{type(error).__name__}: {error}"}
            self._known[made] = verdict
            return [(key, verdict) for key in own]
        return []
