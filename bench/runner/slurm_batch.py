"""What a task of an array does: some cells one after the other, each a command of its own. The result of each is a file.

Runs inside of SLURM, sent there by submitit, which calls `checkpoint` before the end of the task's time and has it requeued.
Knows neither settings nor the scheduler's records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.base.environment import inherited
from bench.base.exitcodes import Exit
from bench.runner.submitted_cell import END_S, QUIET, result_file, write_result


@dataclass
class CellBatch:
    """Some cells of a sweep: their numbers and overrides."""

    folder: str
    """Of the sweep's results."""
    cwd: str
    cells: list[tuple[int, list[str]]]

    def __call__(self) -> None:
        """Train them; one that has a result already is passed over. What ends by a signal has none: it is done again."""
        for number, overrides in self.cells:
            if result_file(Path(self.folder), number).exists():
                continue
            words = [sys.executable, "-P", "-m", "bench", "-m", *overrides, *QUIET]
            self._running = subprocess.Popen(words, cwd=self.cwd, env=inherited(), start_new_session=False)
            code = self._running.wait()
            if code < 0 or code == Exit.KILLED:
                os.kill(
                    os.getpid(), signal.SIGKILL
                )  # the node is going, or the job was cancelled: no result, no next cell
            if os.environ.get("SLURM_PROCID", "0") == "0":
                write_result(Path(self.folder), number, code, os.uname().nodename)

    def checkpoint(self) -> Any:
        """End the cell, which goes on from its last checkpoint, and ask for a requeue; submitit calls this."""
        from submitit.helpers import DelayedSubmission

        running = getattr(self, "_running", None)
        if running is not None and running.poll() is None:
            running.terminate()
            try:
                running.wait(END_S)
            except subprocess.TimeoutExpired:
                running.kill()
        return DelayedSubmission(CellBatch(self.folder, self.cwd, self.cells))
