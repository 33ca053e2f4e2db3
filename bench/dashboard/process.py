"""The dashboard beside a run: another process, which the run starts, never waits for, and ends. It cannot fail the run.

The socket is the run's, so that its address is known before the other process has begun to exist; a pipe tells that one when
the run is gone, however it went.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from bench.base.environment import inherited
from bench.dashboard.listening import address, listen

ENDING_S = 3.0
"""How long it may take to end, before it is killed."""


class DashboardProcess:
    """A dashboard over the runs below a folder. Ends with `close`, or with this process."""

    def __init__(self, output: Path) -> None:
        """Start it. Raises OSError if there can be none."""
        with listen("127.0.0.1", 0) as listening:
            self.address = address(listening, "127.0.0.1")
            words = ["dashboard", str(output), "--socket", str(listening.fileno())]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench", *words],
                env=inherited(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
                start_new_session=True,  # what interrupts the run does not interrupt this: the run ends it
            )

    def close(self) -> None:
        """End it."""
        process = self._process
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
