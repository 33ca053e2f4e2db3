"""The verdicts on the cells of a tree. When a run has finished, or what it is compared with has changed, all finished
runs are judged together, as by `bench validate`.

The caller supplies the judging function. Does not know what verdicts say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.results.cells import Cell, cells
from bench.results.runfolder import Run

Judge = Callable[[Sequence[Cell]], dict[str, dict[str, Any]]]
"""Cells -> the verdict on each, by its name, as plain data for JSON. May take a second for each."""
Stamp = Callable[[], Any]
"""Returns what changes with the baselines."""
Made = tuple[Any, tuple[tuple[str, Any], ...]]
"""Stamp of the baselines, and the state of a tree: its runs, each with a stamp that changes with its result."""


def unchanging() -> tuple[()]:
    """Return the stamp of baselines that do not change."""
    return ()


class CellVerdicts:
    """The verdicts that are known."""

    def __init__(self, judge: Judge, stamp: Stamp = unchanging) -> None:
        self._judge, self._stamp = judge, stamp
        self._known: Made | None = None

    def next(self, finished: Mapping[str, tuple[Run, Any]]) -> list[tuple[str, dict[str, Any]]]:
        """Judge all cells if there is anything new, and return the verdict on the cell of each run, by key; else nothing.

        `finished`: key -> (run with a result, stamp that changes with the result)."""
        made = self._stamp(), tuple((key, marks) for key, (_, marks) in finished.items())
        if made == self._known:
            return []
        self._known = made
        if not finished:
            return []
        grouped = cells([run for run, _ in finished.values()])
        try:
            verdicts = self._judge(grouped)
        except Exception as error:  # a baseline may be damaged: that is said, and the page goes on
            refused = {"name": "REFUSED", "words": f"{type(error).__name__}: {error}"}
            verdicts = {cell.name: refused for cell in grouped}
        keys = {run.path: key for key, (run, _) in finished.items()}
        return [(keys[run.path], verdicts[cell.name]) for cell in grouped for run in cell.runs]
