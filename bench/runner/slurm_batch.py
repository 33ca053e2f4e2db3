"""A task of a SLURM array: runs some cells one after the other, each as a command, and writes a result file for each.

Runs inside SLURM, sent there by submitit, which calls `checkpoint` before the task's time limit and requeues the task.
SIGTERM and SIGUSR1 do the same. Knows neither settings nor the scheduler's accounting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from bench.base.environment import inherited
from bench.base.exitcodes import Exit
from bench.base.interrupts import ENDING, SAVE, end_of
from bench.runner.starts import MOST, in_vain
from bench.runner.submitted_cell import END_S, KEY, QUIET, STOP, log_file, result_file, write_result
from ddp.launcher.slurm_step import job_of
from ddp.launcher.variables import Environment

SAVE_S = 12.0
"""Seconds that a cell gets to save a checkpoint before it is interrupted: SLURM kills 30 s after SIGTERM."""
TOLD = (signal.SIGTERM, signal.SIGUSR1)
IN_VAIN = (
    f"{MOST} starts in a row made no later checkpoint: set launch.minutes higher, or checkpoint.every and "
    "checkpoint.spacing_s lower; where it was preempted, submit it again"
)
ASK_S = 10.0
LOOK_S = 0.1
ALSO_S = 1.0
"""Seconds within which a kill of all of a task's processes reaches this one, after its cell."""


@dataclass
class CellBatch:
    """Some cells of a sweep: their numbers and overrides."""

    folder: str
    """Folder of the sweep's results."""
    cwd: str
    cells: list[tuple[int, list[str]]]
    places: dict[int, str] = field(default_factory=dict)
    """Number of a cell -> place of its run."""

    def __call__(self) -> None:
        """Train the cells, except those that have a result. A cell that ends because the task must end gets no result
        and runs again later. A cell that is killed alone has failed."""
        self._running: subprocess.Popen[bytes] | None = None
        self._told, folder, rank = False, Path(self.folder), int(os.environ.get("SLURM_PROCID", "0"))
        with self._listening():
            for number, overrides in self.cells:
                if result_file(folder, number).exists():
                    continue
                if self._told:  # between two cells
                    self._end(folder)
                    return
                # Rank 0 alone decides: the others would join its next cell.
                if not rank and number in self.places and in_vain(folder, number, Path(self.places[number])):
                    write_result(folder, number, Exit.FAILED, os.uname().nodename, IN_VAIN)
                    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
                        self._end(folder)
                        return
                    continue
                code = self._trained(overrides, log_file(folder, number, rank))
                # The node is going, or the job was cancelled: no result, no next cell.
                ended = code == Exit.KILLED or (code < 0 and (self._told or -code in ENDING))
                code = Exit.FAILED if code < 0 else code  # out of memory, or a crash
                if not ended and not rank:
                    write_result(folder, number, code, os.uname().nodename)
                if self._told:
                    self._end(folder)
                    return
                if ended:
                    os.kill(os.getpid(), signal.SIGKILL)

    def _end(self, folder: Path) -> None:
        """End the task, and requeue it."""
        requeue(folder, os.environ)
        os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Pass the signals that tell a task to end on to its cell."""
        before = {number: signal.signal(number, self._pass_on) for number in TOLD}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _trained(self, overrides: list[str], log: Path) -> int:
        """Train a cell; return its exit code."""
        words = [sys.executable, "-P", "-m", "bench", "-m", *overrides, *QUIET]
        own, key = inherited() | {SAVE: str(SAVE_S)}, Path(self.folder, KEY)
        if key.exists():
            own |= {"DDP_KEY_FILE": str(key)}
        with log.open("ab") as file:
            # Of a group of its own: SLURM's signals go to a task's, and ranks know none.
            self._running = subprocess.Popen(words, cwd=self.cwd, env=own, stdout=file, stderr=file, process_group=0)
        if self._told:  # between two cells
            self._running.terminate()
        code = end_of(self._running)
        if code < 0 and not self._told:
            time.sleep(ALSO_S)
        return code

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Send the signal to the running cell; no further cell starts."""
        self._told = True
        if self._running is not None and self._running.returncode is None:
            self._running.terminate()

    def checkpoint(self) -> Any:
        """End the cell, which will resume from its last checkpoint, and return a request to requeue; submitit calls
        this."""
        from submitit.helpers import DelayedSubmission

        running = getattr(self, "_running", None)
        if running is not None and running.returncode is None:
            running.terminate()
            with suppress(psutil.Error):  # the call that this one interrupts waits for it too, and has the lock
                cell, until = psutil.Process(running.pid), time.monotonic() + END_S
                while cell.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
                    time.sleep(LOOK_S)
            running.kill()
        return DelayedSubmission(replace(self))


def requeue(folder: Path, environ: Environment) -> None:
    """Requeue the ended task in SLURM, unless the sweep or the task was cancelled: then it is completing, with neither a
    preemption nor its time limit as the reason.

    Best effort: SLURM may have done so by itself."""
    job = job_of(environ)  # an element of the array by its index: the last one's own number is the whole array's, too
    if not job or environ.get("SLURM_PROCID", "0") != "0" or (folder / STOP).exists():
        return
    with suppress(OSError, subprocess.SubprocessError):
        question = ["scontrol", "--oneliner", "show", "job", job]
        about = subprocess.run(question, capture_output=True, text=True, timeout=ASK_S, check=True).stdout
        if any(sign in about for sign in ("JobState=RUNNING", "PreemptTime=2", "Reason=TimeLimit")):
            subprocess.run(["scontrol", "requeue", job], capture_output=True, timeout=ASK_S, check=False)
