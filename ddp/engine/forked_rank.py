"""The process of one rank, forked from the fork server, and its end. Knows no other rank."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from ddp.engine.rank import main
from ddp.process import forkserver
from ddp.replica.task import Job

EXIT_TIMEOUT_S = 2.0
"""Seconds that a finished rank may take to exit."""


class ForkedRank:
    """A rank forked from the fork server of this process."""

    def __init__(self, job: Job, rank: int) -> None:
        self._prepare(job, main, f"rank-{rank}", job, rank)

    def _prepare(self, job: Job, target: Callable[..., None], name: str, *arguments: Any) -> None:
        """Create the process object and its channel; `target` gets the arguments and the far end of the channel."""
        context = forkserver.warm(job.preload)
        self._connection, self._far_end = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, self._far_end), name=name, daemon=True)

    def start(self) -> Connection:
        """Fork the rank; all but the first fork take milliseconds."""
        forkserver.resume()
        try:
            with forkserver.script_left_alone():
                self._process.start()
        except BaseException:  # it may have been forked though its PID is unknown: the closed channel ends it
            self._connection.close()
            raise
        finally:
            self._far_end.close()
        return self._connection

    def wait(self, timeout_s: float) -> bool:
        """Return whether the process has ended; True also for a rank that was never started."""
        if self._process.pid is None:
            return True
        forkserver.resume()  # only the fork server hears of the end
        self._process.join(timeout_s)
        return not self._process.is_alive()

    def kill(self) -> None:
        """Kill the process; works on a stopped process as well."""
        if self._process.pid is not None:
            self._process.kill()

    def exit_reason(self) -> str:
        """Return how the process ended, from its exit code."""
        self.wait(EXIT_TIMEOUT_S)
        code = self._process.exitcode
        if code is None:
            return "it has hung up, though its process still runs"
        return f"its process is gone ({f'killed by signal {-code}' if code < 0 else f'exit code {code}'})"
