"""Runs torch.profiler in a rank for a few steps, to record their operations. Off unless asked for.

Writes `torch-<rank>.json` to the run's scratch folder, with times on the rank's own clock. Knows nothing of timelines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from torch.autograd.profiler import profile, record_function

from ddp.process.clock import now
from ddp.process.operations import Operation, file_of

WARM = 10
"""Steps of a rank before the recording."""
_MARK, _MARKS = "bench clock", 5
"""Name and number of the marks that relate the profiler's clock to ours; several, as the first ones are slow."""


class Profiler:
    """Records the operations of `steps` steps after the first `WARM`."""

    def __init__(self, rank: int, steps: int, scratch: Path) -> None:
        self._path = file_of(scratch, rank)
        self._first, self._stop = WARM, WARM + steps
        self._done = 0
        self._running: Any = None
        self._marks: list[tuple[float, float]] = []
        """(time before, time within) of each mark, seconds."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silence its log

    def step(self) -> bool:
        """Count the step that follows. Return whether the recording began or ended, which takes time that is not
        training."""
        before, self._done = self._done, self._done + 1
        if before == self._first:
            # The core of `torch.profiler.profile`, without that module's imports, which take seconds.
            self._running = profile(use_kineto=True)
            self._running.__enter__()
            self._marks = [_mark() for _ in range(_MARKS)]
            return True
        return before == self._stop and self.close()

    def close(self) -> bool:
        """End the recording if it runs; return whether it did."""
        if self._running is None:
            return False
        running, self._running = self._running, None
        running.__exit__(None, None, None)
        self._path.write_bytes(msgspec.json.encode(operations(running, self._marks)))
        return True


def _mark() -> tuple[float, float]:
    before = now()
    with record_function(_MARK):
        return before, now()


def operations(stopped: Any, marks: list[tuple[float, float]]) -> list[Operation]:
    """Return the operations after the last mark, on our clock. Each mark begins, on the profiler's clock, between two of
    our times; the mark with the closest two relates the clocks."""
    events = stopped.kineto_results.events()
    begins = sorted(event.start_ns() for event in events if event.name() == _MARK)
    (before, within), zero = min(zip(marks, begins, strict=True), key=lambda pair: pair[0][1] - pair[0][0])
    began, last = (before + within) / 2, begins[-1]
    return [
        Operation(
            event.name(), began + (event.start_ns() - zero) / 1e9, event.duration_ns() / 1e9, event.start_thread_id()
        )
        for event in events
        if event.name() != _MARK and event.start_ns() >= last
    ]
