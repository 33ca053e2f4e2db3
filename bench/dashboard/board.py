"""`RunBoard`: the pieces of data now shown of every run, each with the number of its last change.

A reader asks for the changes since the last number that it has: a broken connection catches up, and a new one gets all
pieces. Pieces are small and bounded, so that a change sends the whole piece and a reader misses nothing. Threads: one
calls `refresh`, any may call `since`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.dashboard import tree, view
from bench.dashboard.about import BROKEN, RUNNING, RunCard
from bench.dashboard.verdicts import CellVerdicts, Judge
from bench.results import sweep_file
from bench.results.live.history import RunHistory
from bench.results.live.tail import Tail
from bench.results.runfolder import Run

ROW, ABOUT, LIVE, VERDICT, SWEEP = "row", "about", "live", "verdict", "sweep"
OF_ALL = (ROW, VERDICT, SWEEP)
"""Kinds of pieces that a page gets for every run, and for the current sweep."""


class Piece(NamedTuple):
    """A piece of the data shown."""

    number: int
    """Number of its last change."""
    kind: str
    key: str
    text: str
    """JSON; `null`: the run is gone."""


@dataclass
class _Watched:
    """A run whose folder is followed."""

    place: tree.RunPlace
    about: RunCard
    tail: Tail[RunHistory]
    complete: bool = False
    """Whether its records have been read to their end and cannot grow."""
    shown: tuple[RunCard, RunHistory, int, tuple[str, ...], bool] | None = None
    """Sources of its current pieces; the number counts the records."""


@dataclass
class RunBoard:
    """The runs below a folder."""

    root: Path
    number: int = 0
    """Number of the last change."""
    _runs: dict[str, _Watched] = field(default_factory=dict)
    _pieces: dict[tuple[str, str], Piece] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def since(self, number: int, keys: Collection[str]) -> list[Piece]:
        """Return the pieces changed after `number`, in the order of changes: rows and verdicts of all runs, other
        pieces only of the runs in `keys`."""
        with self._lock:
            new = [piece for piece in self._pieces.values() if piece.number > number]
        return sorted(piece for piece in new if piece.kind in OF_ALL or piece.key in keys)

    def refresh(self, keys: Collection[str]) -> bool:
        """Scan the folders again; read new records of running runs and of the runs in `keys`. Return whether there is
        more to read at once."""
        sweep = sweep_file.read(self.root)
        self._show(SWEEP, "", None if sweep is None else lambda: sweep)
        places = tree.scan(self.root)
        for key in self._runs.keys() - places.keys():
            del self._runs[key]
            for kind in (ROW, ABOUT, LIVE, VERDICT):
                self._show(kind, key, None)
        return sum(self._look_at(entry, key in keys) for key, entry in places.items()) > 0

    @property
    def finished(self) -> dict[str, tuple[Run, Any]]:
        """Return key -> (run, stamp) of the runs with a result. The stamp changes with the result."""
        return {
            key: (Run(run.place.folder, run.about.metrics, run.about.config), run.place.marks)
            for key, run in self._runs.items()
            if run.about.metrics is not None
        }

    def enter(self, key: str, verdict: dict[str, Any]) -> None:
        """Show the verdict on the cell of a run."""
        if key in self._runs:
            self._show(VERDICT, key, lambda: verdict)

    def _look_at(self, place: tree.RunPlace, wanted: bool) -> bool:
        """Refresh one run. An error of its folder is shown in the run's own row and does not affect others."""
        try:
            return self._refresh(place, wanted)
        except Exception as error:
            self._show_all(_broken(place.key, error), RunHistory(), wanted)
            return False

    def _refresh(self, place: tree.RunPlace, wanted: bool) -> bool:
        run = self._runs.get(place.key)
        if run is None:
            run = self._runs[place.key] = _Watched(place, _about(place), Tail(place.folder, RunHistory))
        elif place != run.place:
            if place.folder != run.place.folder:
                run.tail.move(place.folder)
            run.place, run.about, run.complete = place, _about(place), False
        more = False
        if not run.complete and (wanted or run.about.metrics is None):
            more = run.tail.read()
            run.complete = not more and run.about.status != RUNNING
        history, unread = run.tail.state, run.tail.unread
        last, run.shown = run.shown, (run.about, history, history.changes, unread, wanted)
        if last is None or last[0] is not run.about or last[1] is not history or last[2:] != run.shown[2:]:
            self._show_all(_noted(run.about, unread), history, wanted)
        return more

    def _show_all(self, about: RunCard, history: RunHistory, wanted: bool) -> None:
        self._show(ROW, about.key, lambda: view.row(about, history))
        if wanted:
            self._show(ABOUT, about.key, lambda: view.about(about))
            self._show(LIVE, about.key, lambda: view.live(about, history))

    def _show(self, kind: str, key: str, make: Callable[[], Any] | None) -> None:
        """Store a piece if it has changed."""
        text = json.dumps(make() if make else None, separators=(",", ":"), allow_nan=False)
        known = self._pieces.get((kind, key))
        if (known is None and make is None) or (known is not None and known.text == text):
            return
        with self._lock:
            self.number += 1
            self._pieces[kind, key] = Piece(self.number, kind, key, text)


def _about(place: tree.RunPlace) -> RunCard:
    """Return the card of a run folder; for an unreadable folder, a card with the reason."""
    try:
        return tree.read(place)
    except Exception as error:  # read again when the folder changes, not at every look
        return _broken(place.key, error)


def _noted(about: RunCard, unread: Collection[str]) -> RunCard:
    """Return the card with a problem added for unreadable record files."""
    new = tuple(text for text in unread if text not in about.problems)
    return replace(about, problems=(*about.problems, *new)) if new else about


def _broken(key: str, error: Exception) -> RunCard:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return RunCard(key, BROKEN, problems=(f"this folder cannot be shown ({text[:300]})",))


def whole(root: Path, keys: Collection[str] | None = None, judge: Judge | None = None) -> list[Piece]:
    """Return all current pieces of the runs below `root` (`keys` None: of all runs); with `judge`, the verdicts
    too."""
    board = RunBoard(root)
    chosen = set(tree.scan(root)) if keys is None else keys
    while board.refresh(chosen):
        pass
    verdicts = CellVerdicts(judge) if judge is not None else None
    while verdicts is not None and (known := verdicts.next(board.finished)):
        for key, verdict in known:
            board.enter(key, verdict)
    return board.since(0, chosen)
