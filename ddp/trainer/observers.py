"""Passes the records of a run to its observers: a timeline from the start of the run, and monitors from when they are
attached.

Also decides when the model is traced for its picture. If the run is in this process, the training thread does that
between two records, because tracing and training use the same random generators. Must not know what observers show.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ddp.core.messages.events import Ready
from ddp.monitor import Monitor, Timeline
from ddp.monitor.harness import Json, picture
from ddp.monitor.track import RunSubject, RunTrack, status_of
from ddp.process.clock import now
from ddp.process.codec import Record

KEPT = 4096
"""Number of the last records that are kept for monitors that attach late. Most runs have fewer."""
Listener = Callable[[Record, float], None]


class RunObservers:
    """The observers of one run."""

    def __init__(
        self, subject: RunSubject, sketch: Callable[[], Json | None], timeline: Listener | None, in_place: bool
    ) -> None:
        """`sketch`: makes the model and returns a description of its layers; `in_place`: the run trains in this
        process."""
        self._subject, self._sketch, self._in_place = subject, sketch, in_place
        self._timeline = timeline
        self._track: RunTrack | None = None
        """Records of the timeline."""
        self._monitors: list[tuple[Monitor, RunTrack]] = []
        self._full: set[RunTrack] = set()
        """Tracks that could not be written; they receive no more records."""
        self._ready: list[tuple[Record, float]] = []
        self._latest: deque[tuple[Record, float]] = deque(maxlen=KEPT)
        self._waiting: list[Callable[[], None]] = []
        """Calls that the training thread makes after the next record."""
        self._thread: threading.Thread | None = None
        """The training thread."""
        self._over = False
        self._folder: Path | None = None
        self._launched = now()
        self._end: tuple[str, str | None, float] | None = None
        """Status of the ended run, its error and its time."""
        self._lock = threading.RLock()

    @contextmanager
    def during(self, folder: Path, written: Callable[[], Path | None]) -> Iterator[None]:
        """Inform observers about the run inside this block. Ranks write their own measurements to `folder`; after
        the run they may be in the folder that `written` returns."""
        with self._lock:
            self._thread, self._folder = threading.current_thread(), folder
            for monitor, track in self._monitors:
                monitor.measure(track, folder)
            self._do_waiting()
        if isinstance(self._timeline, Timeline):
            self._track = self._timeline.begin(self._subject)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._lock:
                self._folder = self._thread = None
                self._do_waiting()
            tracks = [*([] if self._track is None else [self._track]), *(track for _, track in self._monitors)]
            for place in (folder, written()):
                for track in tracks if place is not None else ():
                    self._write(track, partial(track.collect, place or folder))
            if isinstance(self._timeline, Timeline) and self._track is not None:
                self._timeline.end(self._track)
            with self._lock:
                self._end = *status_of(error), now()
                for monitor, track in self._monitors:
                    self._write(track, partial(monitor.end, track, *self._end))

    def _write(self, track: RunTrack, write: Callable[[], None]) -> None:
        """Call `write` for an observer's track. An OSError, such as a full disk, prints one line and stops this
        track; the run continues."""
        if track not in self._full:
            try:
                write()
            except OSError as error:
                self._full.add(track)
                print(f"a timeline or monitor records no more of this run: {error}", file=sys.stderr)

    def over(self) -> None:
        """Note that the training thread has ended, and make the waiting calls in this thread."""
        with self._lock:
            self._over = True
            self._do_waiting()

    def take(self, record: Record, at: float) -> None:
        """Pass a record to all observers."""
        if isinstance(self._timeline, Timeline):
            if self._track is not None and self._timeline.recording:
                self._write(self._track, partial(self._track, record, at))
        elif self._timeline is not None:
            self._timeline(record, at)
        with self._lock:
            (self._ready if isinstance(record, Ready) else self._latest).append((record, at))
            for _, track in self._monitors:
                self._write(track, partial(track, record, at))
            self._do_waiting()

    def _do_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()

    def attach(self, monitor: Monitor) -> None:
        """Show the run on `monitor`, beginning with the records that were kept."""
        with self._lock:
            track = monitor.begin(self._subject, now() - self._launched)
            for record, at in (*self._ready, *self._latest):
                track(record, at)
            self._monitors.append((monitor, track))
            if self._folder is not None:
                monitor.measure(track, self._folder)
            if self._end is not None:
                monitor.end(track, *self._end)
        self._apart(lambda: self._write(track, lambda: monitor.describe(track, self._sketch())))

    def svg(self) -> str:
        """Return the picture of the model as SVG; "" if its layers cannot be traced."""
        graphs: list[Json | None] = []
        self._apart(lambda: graphs.append(self._sketch())).wait()
        return picture(graphs[0]) if graphs and graphs[0] is not None else ""

    def _apart(self, work: Callable[[], Any]) -> threading.Event:
        """Call `work` now, or have the training thread call it if the run trains in this process. Return an event
        that is set once it is done."""
        done = threading.Event()

        def act() -> None:
            try:
                work()
            finally:
                done.set()

        with self._lock:
            other = self._in_place and not self._over and self._thread is not threading.current_thread()
            if other:
                self._waiting.append(act)
        if not other:
            act()
        return done
