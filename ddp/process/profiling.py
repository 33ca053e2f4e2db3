"""A window of torch.profiler in a rank: which operations its steps are made of. Off unless it is asked for.

Leaves `torch-<rank>.json` in the run's scratch folder, with times on the rank's own clock. Knows nothing of timelines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from torch.autograd.profiler import profile, record_function

from ddp.process.clock import now
from ddp.process.operations import Operation, file_of

WARM = 10
"""Steps of a rank before its window."""
_MARK, _MARKS = "bench clock", 5
"""Name and number of the marks by which the profiler's clock is told from ours: the first ones take their time."""


class Profiler:
    """Records the operations of `steps` steps, after the first `WARM`."""

    def __init__(self, rank: int, steps: int, scratch: Path) -> None:
        self._path = file_of(scratch, rank)
        self._first, self._stop = WARM, WARM + steps
        self._done = 0
        self._running: Any = None
        self._marks: list[tuple[float, float]] = []
        """Before and within each mark, seconds."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it has things to say that concern nobody

    def step(self) -> bool:
        """Count a step that follows. Return whether the window began or ended, which takes time that is no training."""
        before, self._done = self._done, self._done + 1
        if before == self._first:
            # What lies beneath `torch.profiler.profile`, which takes seconds to import what it needs.
            self._running = profile(use_kineto=True)
            self._running.__enter__()
            self._marks = [_mark() for _ in range(_MARKS)]
            return True
        return before == self._stop and self.close()

    def close(self) -> bool:
        """End the window, if it is open; return whether it was."""
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
    """Return the operations recorded behind the marks. The profiler has a clock of its own: a mark begins on it between
    two moments of ours; the mark with the closest two is taken."""
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
