"""Defines `Timeline`: records a run from its start and saves it as JSON, CSV or an HTML page.

Owns the list of recorded runs. Must not know the contents of a page.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp.core.messages.events import Ready, Slice
from ddp.monitor.harness import save_timeline
from ddp.monitor.shelf import RecordShelf
from ddp.monitor.track import Looking, RunSubject, RunTrack
from ddp.process.clock import now
from ddp.process.codec import Record, decode, encode, stamp
from ddp.settings import MAX_VIRTUAL, number, whole

KINDS = ("data", "forward", "backward", "optimizer", "exchange", "copy", "wait", "evaluate", "checkpoint")
"""Kinds of work that `measure` accepts."""
DAY_MS = 86_400_000.0
LOOP = "loop"
"""Mode of a loop of one's own, of which nothing but its measured blocks is known."""


class Timeline:
    """Records runs between `start` and `stop`. Pass it to `Trainer(timeline=)` or `DdpConfig(timeline=)`.

        with ddp.Timeline() as timeline:
            Trainer(..., timeline=timeline).run().join()
        timeline.save_html("timeline.html")

    Several runs may use it one after the other; the `save_*` methods take the index of a `run`, -1 for the last. In your
    own loop, `measure` records the time of a block. `poll_ms`: milliseconds between measurements of this process's memory
    and processor time, if the ranks run in it; ranks that are processes measure themselves. A file is written only by
    `save_*`.
    """

    def __init__(self, poll_ms: float = 100.0) -> None:
        self._poll_s = number("poll_ms", poll_ms, 1.0, DAY_MS) / 1000
        self._runs: list[RunTrack] = []
        self._shelf = RecordShelf()
        self._measured: list[RunTrack] = []
        """Runs whose ranks are in this process."""
        self._looking: Looking | None = None
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def runs(self) -> int:
        """Return the number of recorded runs."""
        return len(self._runs)

    def start(self) -> None:
        """Start recording. A run that begins also starts it, unless `stop` was called."""
        with self._lock:
            self._stopped = False
            if self._looking is None:
                self._looking = Looking(self._look, self._poll_s, "ddp-timeline")

    def stop(self) -> None:
        """Stop recording."""
        with self._lock:
            looking, self._looking, self._stopped = self._looking, None, True
        if looking is not None:
            looking.close()
            self._look()

    def __enter__(self) -> Timeline:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _look(self) -> None:
        for track in list(self._measured):
            track.measure()

    def begin(self, subject: RunSubject, here: bool = False) -> RunTrack:
        """Begin a run; called by an engine. `here`: the ranks are in this process and do not measure themselves."""
        for last in self._runs[-1:]:
            if last not in self._measured:  # it may have had records after its end
                last.release(self._shelf)
        track = RunTrack(subject)
        self._runs.append(track)
        if here:
            self._measured.append(track)
        if not self._stopped:
            self.start()
        return track

    def end(self, track: RunTrack) -> None:
        """Note that a run has ended."""
        self._measured = [each for each in self._measured if each is not track]
        track.release(self._shelf)

    @property
    def recording(self) -> bool:
        """Return whether records are kept."""
        return not self._stopped

    def __call__(self, record: Record, at: float) -> None:
        """Add a record to the last run. `at`: seconds on the clock that all records share."""
        if self.recording:
            self._own()(record, at)

    def _own(self) -> RunTrack:
        """Return the run that is being recorded. Begin one for this process if there is none."""
        if not self._runs:
            track = self.begin(RunSubject("loop", LOOP, ("cpu",)), here=True)
            track(_ready(now(), 0), now())
        return self._runs[-1]

    @contextmanager
    def measure(self, kind: str, rank: int = 0) -> Iterator[None]:
        """Record the time that the block takes as `kind`: `data`, `forward`, `backward`, `optimizer`, `exchange`, ...
        Raises ValueError for an unknown kind or an impossible rank. GPU work counts only as long as the host waits for
        it."""
        if kind not in KINDS:
            raise ValueError(f"measure({kind!r}): choose one of {', '.join(KINDS)}")
        whole("rank", rank, 0, MAX_VIRTUAL - 1)
        began = now()
        try:
            yield
        finally:
            self(Slice(began, rank, kind, now() - began), began)

    def save_json(self, path: str | Path, run: int = -1) -> Path:
        """Write a Chrome trace, which Perfetto opens; return its path. Raises ValueError if the run does not exist;
        OSError."""
        return self._save("json", path, run)

    def save_csv(self, path: str | Path, run: int = -1) -> Path:
        """Write a CSV table with one row for each measured interval; return its path. Raises as `save_json`."""
        return self._save("csv", path, run)

    def save_html(self, path: str | Path, run: int = -1) -> Path:
        """Write one HTML page with lanes, counters and idle time, which needs no network; return its path. Raises as
        `save_json`."""
        return self._save("html", path, run)

    def _save(self, form: str, path: str | Path, run: int) -> Path:
        if not -len(self._runs) <= run < len(self._runs):
            what = f"run={run}, and it has {len(self._runs)}" if self._runs else "nothing yet"
            raise ValueError(f"the timeline has recorded {what}: give it to Trainer(timeline=) or DdpConfig(timeline=)")
        track, place = self._runs[run], Path(path)
        config: dict[str, Any] = track.subject.config()
        lines = track.lines()
        if track.subject.mode == LOOP:  # it has the ranks that were measured
            last = max((each.rank for each in map(decode, lines) if isinstance(each, Slice)), default=0)
            begun, config["world_size"] = stamp(lines[0]), last + 1
            lines[1:1] = [encode(_ready(begun, rank), begun) for rank in range(1, last + 1)]
        place.parent.mkdir(parents=True, exist_ok=True)
        save_timeline(form, place, config, track.launched, lines)
        return place


def _ready(at: float, rank: int) -> Ready:
    return Ready(at, rank, 0, 0, "", "cpu", "none")
