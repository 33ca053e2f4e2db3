"""A window of torch.profiler in a rank: which operations its steps are made of. Off unless it is asked for.

Leaves `torch-<rank>.json` in the run's scratch folder, with times on the rank's own clock. Knows nothing of timelines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ddp.runtime.clock import now
from ddp.runtime.operations import Operation, file_of

WARM = 10
"""Steps of a rank before its window."""
_MARK = "bench clock"


class Profiler:
    """Records the operations of `steps` steps, after the first `WARM`."""

    def __init__(self, rank: int, steps: int, scratch: Path) -> None:
        self._path = file_of(scratch, rank)
        self._first, self._stop = WARM, WARM + steps
        self._done = 0
        self._running: Any = None
        self._began = 0.0
        # The first start takes a second and more, and has things to say that concern nobody.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        with _profile():
            torch.ones(1).sum()

    def step(self) -> bool:
        """A step follows. Returns whether the window began or ended, which takes time that is no training."""
        before, self._done = self._done, self._done + 1
        if before == self._first:
            self._running = _profile()
            self._running.start()
            self._began = now()
            with record_function(_MARK):
                pass
            return True
        return before == self._stop and self.close()

    def close(self) -> bool:
        """The window ends here, if it is open; whether it was."""
        if self._running is None:
            return False
        running, self._running = self._running, None
        running.stop()
        self._path.write_bytes(msgspec.json.encode(operations(running, self._began)))
        return True


def _profile() -> Any:
    return profile(activities=[ProfilerActivity.CPU])


def operations(stopped: Any, began: float) -> list[Operation]:
    """What was recorded since the mark, which was set at `began`: the profiler has a clock of its own."""
    events = stopped.profiler.kineto_results.events()
    zero = next(event.start_ns() for event in events if event.name() == _MARK)
    return [
        Operation(
            event.name(), began + (event.start_ns() - zero) / 1e9, event.duration_ns() / 1e9, event.start_thread_id()
        )
        for event in events
        if event.name() != _MARK and event.start_ns() >= zero
    ]
