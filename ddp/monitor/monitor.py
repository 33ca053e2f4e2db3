"""Defines `Monitor`: a live page of the runs of a script.

Owns the temporary folder that holds the runs while the page is served. Must not know how a run trains, nor what the page
shows.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn

from ddp.monitor.harness import ServedPage, page_maker
from ddp.monitor.loop import LoopRun, subject_of
from ddp.monitor.shelf import RecordShelf
from ddp.monitor.track import EVENTS, Looking, RunSubject, RunTrack, status_of
from ddp.process.clock import now
from ddp.settings import MOST_EPOCHS, number, whole

LOOK_S = 0.5
"""Seconds between two measurements of memory and processor time."""


class Monitor:
    """Shows the runs of this script on a live page: runs of a `Trainer`, of a graph, or of your own loop.

        monitor = ddp.Monitor(epochs=10)
        run.setup_monitor(monitor)          # of Trainer.run(); or monitor.watch(graph), or neither
        print(monitor.serve(3000))
        monitor.log(epoch, seconds, {"loss": loss, "accuracy": accuracy})
        monitor.finish()

    `epochs`: number of planned epochs. Another process serves the page on 127.0.0.1 until `finish` is called, the `with`
    block is left, or this process ends. Only `save_html` leaves a file behind.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = whole("epochs", epochs, 1, MOST_EPOCHS)
        self._tracks: list[RunTrack] = []
        self._shelf = RecordShelf()
        self._loop: LoopRun | None = None
        self._looking: Looking | None = None
        self._root: Path | None = None
        self._page: ServedPage | None = None
        self._trained = False
        """Whether the last run is a `Trainer`'s: it hands over its records, so `log` adds nothing."""
        self._lock = threading.RLock()
        """Guards tracks and folder: a `Trainer` hands over records from another thread."""
        _open.add(self)

    @property
    def address(self) -> str | None:
        """Return the URL of the page; None if it is not served."""
        return self._page.address if self._page is not None else None

    def serve(self, port: int = 0) -> str:
        """Start serving the page on 127.0.0.1 and return its URL. `port` 0: any free port. Raises OSError if the port is in
        use."""
        if self._page is None:
            root = self._folder()
            try:
                self._page = page_maker().serve(root, port)
            except OSError as error:
                shutil.rmtree(root, ignore_errors=True)
                hint = "choose another port, or 0 for any that is free"
                raise OSError(error.errno or errno.EINVAL, f"cannot serve on port {port} ({error}); {hint}") from None
            with self._lock:
                self._root = root
                for track in self._tracks:
                    self._put(root, track, track.move)
        return self._page.address

    def watch(self, model: nn.Module) -> None:
        """Begin a run of your own loop, which trains `model`: a module, or a `Graph`, whose replicas, batch shares and
        learning rate are shown too. Layers are shown after the first forward pass."""
        self._begin_loop(model)

    def log(
        self,
        epoch: int,
        seconds: float | timedelta,
        metrics: Any = None,
        /,
        **figures: float | None,
    ) -> None:
        """Record the end of `epoch` (from 0), which took `seconds`.

        `metrics`: a mapping of names to numbers, a watched graph (for its `record_scalar` values), or an `EpochMetrics`;
        keywords add to it. `loss`, `eval`, `eval_loss`, `lr` and `samples` have the same meaning as in `EpochMetrics`;
        other names are scalars. Without `samples` no speed is shown. Does nothing for a run of a `Trainer`, which records
        all of this itself. Raises ValueError for a value that is not a number."""
        place = whole("epoch", epoch, 0, MOST_EPOCHS)
        spent = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        number("seconds", spent, 0.0)
        if self._trained:
            return
        if self._loop is None:
            self._begin_loop(None, spent)
        assert self._loop is not None
        self._loop.log(place, spent, _figures(metrics) | figures)

    def finish(self) -> None:
        """Stop serving the page and delete its temporary folder; `save_html` still works."""
        self._finish()

    def _finish(self, error: BaseException | None = None) -> None:
        """Do as `finish`. `error`: what ended the loop that was being shown."""
        if self._looking is not None:
            self._looking.close()
            self._looking = None
        self._end_loop(*status_of(_unless_exit(error)))
        if self._page is not None:
            self._page.close()
            self._page = None
        self._remove()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._finish(error)

    def save_html(self, path: str | Path) -> Path:
        """Write the present page to one file that needs no server and no network; return its path. Raises OSError."""
        out = Path(path)
        out.parent.mkdir(parents=True, exist_ok=True)
        with self._folder_for_now() as root:
            page_maker().export(root, out)
        return out

    def begin(self, subject: RunSubject, seconds: float = 0.0) -> RunTrack:
        """Add a run of a `Trainer` that began `seconds` ago. The `Trainer` calls this and hands over its records."""
        self._end_loop()
        self._trained = True
        return self._begin(subject, seconds)

    def measure(self, track: RunTrack, folder: Path) -> None:
        """Show, while the run lasts, the measurements that its ranks write to `folder`."""
        self._look(track, lambda: track.collect(folder, kinds=(b'{"type":"Memory"',)))

    def describe(self, track: RunTrack, graph: dict[str, Any] | None) -> None:
        """Add the layers of a run's model."""
        track.graph = graph
        with self._lock:
            if self._root is None:
                return
            place = _place(self._root, track, over=track.ended is not None)
            page_maker().describe(place, track.config(), graph)

    def end(self, track: RunTrack, status: str, error: str | None = None, at: float | None = None) -> None:
        """Note that a run has ended with `status`: `ok`, `failed`, `diverged` or `killed`. `at`: the time; None: now."""
        with self._lock:
            track.ended = now() if at is None else at, status, error
            if self._root is not None:
                self._conclude(self._root, track)
            track.release(self._shelf)

    @staticmethod
    def _conclude(root: Path, track: RunTrack) -> None:
        """Write the result of an ended run and rename its folder to its final name."""
        making, end = _place(root, track), track.ended
        assert end is not None
        page_maker().conclude(making, track.config(), track.lines(), track.launched, end)
        making.rename(_place(root, track, over=True))

    def _begin_loop(self, model: nn.Module | None, seconds: float = 0.0) -> None:
        self._end_loop()
        track = self._begin(subject_of(model, self.epochs), seconds)
        self._trained = False
        self._loop = LoopRun(track, model, lambda graph: self.describe(track, graph))
        self._look(track, track.measure)

    def _end_loop(self, status: str = "ok", error: str | None = None) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
            self.end(loop.track, status, error)

    def _look(self, track: RunTrack, look: Callable[[], None]) -> None:
        if self._looking is not None:
            self._looking.close()

        def look_on() -> None:
            if track.ended is None:
                look()

        self._looking = Looking(look_on, LOOK_S, "ddp-monitor")

    def _begin(self, subject: RunSubject, seconds: float = 0.0) -> RunTrack:
        track = RunTrack(subject, seconds)
        with self._lock:
            self._tracks.append(track)
            if self._root is not None:
                self._put(self._root, track, track.move)
        return track

    def _put(self, root: Path, track: RunTrack, write: Callable[[Path], None]) -> None:
        """Add a run to the folder `root`. `write`: writes the run's records to the path that it is given."""
        place = _place(root, track)
        place.mkdir(parents=True)
        page_maker().describe(place, track.config(), track.graph)
        write(place / EVENTS)
        if track.ended is not None:
            self._conclude(root, track)

    @staticmethod
    def _folder() -> Path:
        return Path(tempfile.mkdtemp(prefix="ddp-monitor-"))

    @contextmanager
    def _folder_for_now(self) -> Iterator[Path]:
        """Yield a temporary folder with the present state of all runs."""
        with tempfile.TemporaryDirectory(prefix="ddp-monitor-") as folder:
            with self._lock:
                for track in self._tracks:
                    self._put(Path(folder), track, track.copy)
            yield Path(folder)

    def _remove(self) -> None:
        with self._lock:
            root, self._root = self._root, None
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)


_open: weakref.WeakSet[Monitor] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    # The exception that ends this process; at a prompt, one of the past.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for monitor in list(_open):
        monitor._finish(error)


def _unless_exit(error: BaseException | None) -> BaseException | None:
    """Return the error, or None for an exit without one."""
    return None if isinstance(error, SystemExit) and error.code in (None, 0) else error


def _place(root: Path, track: RunTrack, over: bool = False) -> Path:
    """Return the folder of a run. While the run is not `over`, the name is a temporary one."""
    number = f"{track.made:.6f}".replace(".", "")[-9:]  # several runs may have the same configuration
    name = f"{track.config()['run_id']}-{number}"
    return root / track.subject.name / track.subject.mode / (name if over else f".tmp-{name}-{os.getpid()}")


def _figures(metrics: Any) -> dict[str, Any]:
    """Return the values to log, by name."""
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    scalars = getattr(metrics, "scalars", None)
    if callable(scalars):  # a graph
        return {**scalars()}
    if scalars is not None:  # EpochMetrics of a run that the page does not show
        names = ("loss", "eval", "eval_loss", "lr", "samples")
        return {name: getattr(metrics, name, None) for name in names} | dict(scalars)
    raise ValueError(
        f"log takes a mapping of names to numbers, a graph or an EpochMetrics, not {type(metrics).__name__}: give "
        '{"loss": loss}'
    )
