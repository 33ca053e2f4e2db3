"""Defines `RunHandle`: a training run in the background, from its start to its end.

The engine runs in a thread of this process. The ranks are processes; a single rank trains in the engine's thread. Owns
that thread and the end of the run: an interrupt, an exception or the end of the script leaves no process behind.
"""

from __future__ import annotations

import atexit
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from ddp.checkpoint.checkpoint import place
from ddp.core.errors import Aborted, RankFailed
from ddp.core.figures.summary import EpochFigures, EpochFold
from ddp.core.messages.commands import Drop, Publish
from ddp.core.messages.events import Finished, Ready, Saved
from ddp.engine.solo import Emit
from ddp.monitor import Monitor
from ddp.process.scratch import scratch
from ddp.replica.task import Job
from ddp.trainer.epochs import EpochMetrics, epoch_metrics
from ddp.trainer.in_place import put_back
from ddp.trainer.observers import RunObservers
from ddp.trainer.recording import Recorder
from ddp.trainer.state import CheckpointInfo, TrainedState, read_state
from ddp.trainer.summary import SHOWN, RunSummary
from ddp.trainer.task import PackedTask

PATIENCE_S = 30.0
"""Seconds that `abort` waits for the run to end. A training step in this process is not interrupted."""

DIFFERENT = (
    "the ranks ended with different models: what the epoch callback changes in a model must be the same on every rank. The "
    "state of the run is that of its first rank"
)

_live: weakref.WeakSet[RunHandle] = weakref.WeakSet()
_starting = threading.Lock()


class _Stop(KeyboardInterrupt):
    """Stops the engine. `except Exception` in the engine does not catch it, because it is a KeyboardInterrupt."""


class RunHandle:
    """Handle of a training run. Methods are thread-safe. As a context manager, it ends the run at the end of the block."""

    def __init__(
        self,
        job: Job,
        engine: Callable[[Job, Emit], None],
        packed: PackedTask | None,
        devices: list[str],
        saved: Callable[[CheckpointInfo], None] | None = None,
        recorder: Recorder | None = None,
        names: tuple[str, str] = ("", "metric"),
        *,
        observers: RunObservers,
    ) -> None:
        """Start `engine` with `job` in a thread. `packed`: the task for the ranks' processes; None: they run in this
        process. `names`: (mode, metric). `observers`: the timeline and the monitors that also receive the records."""
        self._job, self._packed, self._recorder, self._names = job, packed, recorder, names
        self._engine = engine if recorder is None else recorder.run
        self._devices, self._saved, self._observers = tuple(devices), saved, observers
        self._epochs, self._seconds = EpochFold(job.epochs), 0.0
        """Epochs that are not complete; seconds of training until the end of the last complete epoch."""
        self._metrics: SimpleQueue[EpochMetrics | None] = SimpleQueue()
        self._latest: deque[EpochMetrics] = deque(maxlen=SHOWN)
        self._finished: dict[int, str] = {}
        """Digest of the final state of each rank."""
        self._notes: list[str] = []
        """Warnings for a run that succeeds: lost ranks, how the data was read."""
        self._whole: CheckpointInfo | None = None
        """The last checkpoint."""
        self._stop, self._ended, self._raised = threading.Event(), threading.Event(), False
        self._state: TrainedState | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ddp-run", daemon=True)
        with _starting:
            if packed is None:
                _refuse_beside_another()
            _live.add(self)
            self._thread.start()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._job.world_size

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each rank."""
        return self._devices

    @property
    def folder(self) -> Path | None:
        """Folder of the run, once it has ended; None before, and for a run without `output`."""
        return self._recorder.folder if self._recorder is not None else None

    def __repr__(self) -> str:
        """Return the headline and the figures of the run, in one line."""
        summary = self.summary()
        return f"<RunHandle: {summary.headline}{summary.figures and f'; {summary.figures}'}>"

    def __str__(self) -> str:
        """Return the summary of the run with all details."""
        return "\n".join(self.summary().lines())

    def _repr_html_(self) -> str:
        """Return the summary for a notebook, with a table of the last epochs."""
        return self.summary().html()

    def summary(self) -> RunSummary:
        """Return the present state of the run, without waiting."""
        state, error = "running", self._error
        if self._state is not None:
            state = "finished"
        elif error is not None:
            state = "aborted" if isinstance(error, Aborted) else f"{type(error).__name__}: {error}".splitlines()[0]
        mode, metric = self._names
        notes, planned = tuple(dict.fromkeys(self._notes)), self._job.epochs
        epochs = tuple(self._latest)
        return RunSummary(mode, metric, self._devices, planned, state, self._seconds, epochs, notes, self.folder)

    def next_metrics(self) -> EpochMetrics | None:
        """Wait for the next complete epoch and return its metrics. Return None at the end of the run (`join` tells how it
        ended)."""
        with self._ending_if_interrupted():
            metrics = self._metrics.get()
        if metrics is None:
            self._metrics.put(None)  # for the next call
        return metrics

    def poll_metrics(self) -> list[EpochMetrics]:
        """Return the metrics of the epochs completed since the last call, without waiting."""
        ready: list[EpochMetrics] = []
        while True:
            try:
                metrics = self._metrics.get_nowait()
            except Empty:
                return ready
            if metrics is None:
                self._metrics.put(None)
                return ready
            ready.append(metrics)

    def wait(self) -> None:
        """Wait for the end of the run. Does not raise the error of a failed run."""
        with self._ending_if_interrupted():
            self._ended.wait()
            self._thread.join()

    def join(self) -> TrainedState:
        """Wait for the end of the run and return the trained state.

        Raises RankFailed (with the rank and its traceback), RankLost, Diverged, Aborted, other EngineErrors, OSError.
        """
        self.wait()
        if self._state is None:
            self._raised = True
            assert self._error is not None
            raise self._error
        return self._state

    def abort(self) -> None:
        """Stop the run; `join` will raise Aborted. Returns when no process of the run is left, usually within seconds.

        A run in this process stops after the current step. Does nothing if the run has ended.
        """
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._ended.wait(PATIENCE_S)

    def setup_monitor(self, monitor: Monitor) -> None:
        """Show this run on the page of `monitor`: its configuration, its model's layers, its records so far and to come."""
        self._observers.attach(monitor)

    def architecture_svg(self) -> str:
        """Return the layers of the model as SVG, or "" if they cannot be traced. Calls `model_factory` once; a run in this
        process does so between two steps."""
        return self._observers.svg()

    def __enter__(self) -> RunHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run if it still runs. Raise the error of a failed run, unless `join` or the block has raised one."""
        unheard = self._ended.is_set() and self._state is None and not self._raised
        self.abort()
        if kind is None and unheard and not isinstance(self._error, Aborted):
            self.join()

    @contextmanager
    def _ending_if_interrupted(self) -> Iterator[None]:
        """End the run if Ctrl-C or the exception of a signal handler interrupts the wait, and raise that exception."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a step or callback of a run in place cannot wait for that run")
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def _run(self) -> None:
        try:
            room = (self._packed.bytes if self._packed else 0) + (self._recorder.room if self._recorder else 0)
            observed = partial(self._observers.during, written=lambda: self.folder)
            with scratch(room) as folder, put_back(in_place=self._packed is None), observed(folder):
                task = self._packed.deliver(folder) if self._packed is not None else self._job.task
                self._engine(replace(self._job, scratch=folder, task=task), self._emit)
                self._state = read_state(folder, self._finished)
                for note in dict.fromkeys(self._notes):  # a failed run has them in its error
                    warnings.warn(note, RuntimeWarning, stacklevel=1)
                if len(set(self._finished.values())) > 1:
                    warnings.warn(DIFFERENT, RuntimeWarning, stacklevel=1)
        except _Stop:
            self._error = Aborted("the run was aborted before its end")
        except BaseException as error:
            if isinstance(error, RankFailed) and error.__cause__ is None:
                error.add_note(f"In rank {error.rank}:\n{error.traceback}")
            if self._whole is not None:
                error.add_note(self._last())
            self._error = error
        finally:
            try:
                self._observers.over()
                self._hand_out(self._epochs.end())
                if self._state is not None:
                    self._state = replace(self._state, run=self.summary())
            finally:
                self._ended.set()  # before None: whoever reads None may leave the `with` block at once
                self._metrics.put(None)

    def _last(self) -> str:
        """Return which checkpoint the run can be resumed from."""
        if self._whole is None:
            return "there is none before it" if self._job.resume is None else f"the last one is {self._job.resume}"
        return (
            f"the last one is {self._whole.path}, after {self._whole.epochs} epochs: "
            f"Trainer(..., resume={str(self._whole.path.parent)!r}) goes on from it"
        )

    def _emit(self, record: Any, at: float) -> None:
        """Process one record of the engine: collect metrics, call the checkpoint callback, stop the run if asked to. If
        ranks are processes, the engine calls this at least twice a second."""
        if self._stop.is_set():
            raise _Stop
        self._observers.take(record, at)
        if isinstance(record, Finished):
            self._finished[record.rank] = record.digest
        if isinstance(record, Ready) and record.note:
            self._notes.append(record.note)
        if isinstance(record, Drop):
            lost = f"rank {record.rank} is lost: {record.reason}"
            self._notes.append(f"{lost}; the run went on without it (tolerate_loss=False ends it)")
        if isinstance(record, Saved) and record.error:
            note = f"a checkpoint could not be made: {record.error}; {self._last()}"
            warnings.warn(note, RuntimeWarning, stacklevel=1)
        if isinstance(record, Publish):
            assert self._job.checkpoint_folder is not None
            path = place(self._job.checkpoint_folder, record.index)
            self._whole = CheckpointInfo(path, record.coordinator.epochs, record.coordinator.samples)
            if self._saved is not None:
                self._saved(self._whole)
        self._hand_out(self._epochs.add(record))

    def _hand_out(self, epochs: list[EpochFigures]) -> None:
        for figures in epochs:
            self._latest.append(epoch_metrics(figures, self._seconds, self._devices))
            self._metrics.put(self._latest[-1])
            self._seconds = figures.seconds


def _refuse_beside_another() -> None:
    """Raise RuntimeError if another run trains in this process: the two would share random generators."""
    if any(run._packed is None and run._thread.is_alive() and not run._ended.is_set() for run in list(_live)):
        raise RuntimeError(
            "a run without processes of its own is going on in this one, whose random generators it needs: join or abort it "
            "before the next one, or train that in a process of its own"
        )


@atexit.register
def end_all() -> None:
    """Abort all runs when the script ends or is interrupted."""
    for handle in list(_live):
        handle.abort()
