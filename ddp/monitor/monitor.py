"""`Monitor`: the live page over the runs of a script, and what a loop of one's own says about itself.

Owns the folder that such runs lie in while a page is served, and its end. Must not know how a run trains, nor what the page
shows of it.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
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
from ddp.monitor.track import EVENTS, Looking, RunSubject, RunTrack
from ddp.process.clock import now
from ddp.settings import MOST_EPOCHS, whole

LOOK_S = 0.5
"""Between two measurements of what ranks use."""


class Monitor:
    """Shows runs of this script on a live page: of a `Trainer`, of a graph, or of your own loop.

        monitor = ddp.Monitor(epochs=10)
        run.setup_monitor(monitor)          # of Trainer.run(); or monitor.watch(graph), or neither
        print(monitor.serve(3000))
        monitor.log(epoch, seconds, {"loss": loss, "accuracy": accuracy})
        monitor.finish()

    `epochs`: number of epochs planned. Another process serves the page, only on this machine, until `finish`, the end of the
    block, or the end of this process. Only `save_html` leaves a file.
    """

    def __init__(self, epochs: int) -> None:
        self.epochs = whole("epochs", epochs, 1, MOST_EPOCHS)
        self._tracks: list[RunTrack] = []
        self._loop: LoopRun | None = None
        self._looking: Looking | None = None
        self._root: Path | None = None
        self._page: ServedPage | None = None
        self._trained = False
        """Whether the last run is a `Trainer`'s, which tells everything itself."""
        self._lock = threading.RLock()
        """Of tracks and folder: a `Trainer` tells of its run from a thread of its own."""
        _open.add(self)

    @property
    def address(self) -> str | None:
        """Return the address of the page; None: it is not served."""
        return self._page.address if self._page is not None else None

    def serve(self, port: int = 0) -> str:
        """Serve the page on 127.0.0.1; return its address. `port` 0: any free port. Raises OSError for a
        port that is in use."""
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
        """Begin a run of your own loop that trains `model`: a module, or a `Graph`, whose replicas, shares and
        schedule are shown. Its layers are shown after its first forward pass."""
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

        `metrics`: a mapping of names to numbers, a watched graph (its `record_scalar`s), an `EpochMetrics`; keywords add to
        it. `loss`, `eval`, `eval_loss`, `lr` and `samples` mean what they do in `EpochMetrics`, other names are scalars. A
        `Trainer` records all of this itself: nothing is added. Raises ValueError for a value that is not a number."""
        number = whole("epoch", epoch, 0, MOST_EPOCHS)
        spent = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
        if self._trained:
            return
        if self._loop is None:
            self._begin_loop(None)
        assert self._loop is not None
        self._loop.log(number, spent, _figures(metrics) | figures)

    def finish(self) -> None:
        """Stop serving the page and delete its temporary folder; `save_html` still works."""
        if self._looking is not None:
            self._looking.close()
            self._looking = None
        self._end_loop()
        if self._page is not None:
            self._page.close()
            self._page = None
        self._remove()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def save_html(self, path: str | Path) -> Path:
        """Write the page as it is now to a file that needs no server and no network; return where. Raises OSError."""
        out = Path(path)
        out.parent.mkdir(parents=True, exist_ok=True)
        with self._folder_for_now() as root:
            page_maker().export(root, out)
        return out

    def begin(self, subject: RunSubject) -> RunTrack:
        """Begin a run whose records a `Trainer` hands over; it calls this."""
        self._end_loop()
        self._trained = True
        return self._begin(subject)

    def measure(self, track: RunTrack, folder: Path) -> None:
        """Have what ranks measure in `folder` shown while the run lasts."""
        self._look(lambda: track.collect(folder, kinds=(b'{"type":"Memory"',)))

    def describe(self, track: RunTrack, graph: dict[str, Any] | None) -> None:
        """Add the layers of a run's model."""
        track.graph = graph
        with self._lock:
            if self._root is None:
                return
            place = _place(self._root, track, over=track.ended is not None)
            page_maker().describe(place, track.config(), graph)

    def end(self, track: RunTrack, status: str, error: str | None = None) -> None:
        """Note that a run is over: `ok`, `failed`, `diverged` or `killed`."""
        with self._lock:
            track.ended = now(), status, error
            if self._root is not None:
                self._conclude(self._root, track)

    @staticmethod
    def _conclude(root: Path, track: RunTrack) -> None:
        """Put a run that is over into its place."""
        making, end = _place(root, track), track.ended
        assert end is not None
        page_maker().conclude(making, track.config(), track.lines(), track.launched, end)
        making.rename(_place(root, track, over=True))

    def _begin_loop(self, model: nn.Module | None) -> None:
        self._end_loop()
        track = self._begin(subject_of(model, self.epochs))
        self._trained = False
        self._loop = LoopRun(track, model, lambda graph: self.describe(track, graph))
        self._look(track.measure)

    def _end_loop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
            self.end(loop.track, "ok")

    def _look(self, look: Any) -> None:
        if self._looking is not None:
            self._looking.close()
        self._looking = Looking(look, LOOK_S, "ddp-monitor")

    def _begin(self, subject: RunSubject) -> RunTrack:
        track = RunTrack(subject)
        with self._lock:
            self._tracks.append(track)
            if self._root is not None:
                self._put(self._root, track, track.move)
        return track

    def _put(self, root: Path, track: RunTrack, write: Callable[[Path], None]) -> None:
        """Make a run part of a folder. `write`: puts its records where they are to lie."""
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
        """Yield a folder with all runs as they are."""
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
    for monitor in list(_open):
        monitor.finish()


def _place(root: Path, track: RunTrack, over: bool = False) -> Path:
    """Return the folder of a run that this process is making, or that is `over`."""
    number = f"{track.launched:.6f}".replace(".", "")[-9:]  # the same configuration may come twice
    name = f"{track.config()['run_id']}-{number}"
    return root / track.subject.name / track.subject.mode / (name if over else f".tmp-{name}-{os.getpid()}")


def _figures(metrics: Any) -> dict[str, Any]:
    """Return what is known of an epoch by name."""
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    scalars = getattr(metrics, "scalars", None)
    if callable(scalars):  # a graph
        return {**scalars()}
    if scalars is not None:  # EpochMetrics, of another run than those that are shown
        names = ("loss", "eval", "eval_loss", "lr", "samples")
        return {name: getattr(metrics, name, None) for name in names} | dict(scalars)
    raise ValueError(
        f"log takes a mapping of names to numbers, a graph or an EpochMetrics, not {type(metrics).__name__}: give "
        '{"loss": loss}'
    )
