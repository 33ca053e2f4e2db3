"""The loggers beside a run: a process for each, which follows the run folder. At its end the run waits for them, for a
limited time. Imports none of their packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from bench.base.environment import inherited
from bench.loggers import LOGGERS, RunInfo

ENDING_S = 120.0
"""Seconds that all loggers together may take to write after the run is over."""


class LoggerProcesses:
    """Loggers `names` of the run that is made in `folder`. A context manager: they end with it, or with this process."""

    def __init__(self, names: tuple[str, ...], folder: Path, output: Path, info: RunInfo) -> None:
        self._notes: list[str] = []
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            words = [LOGGERS[name], str(folder), str(output), json.dumps(asdict(info))]
            try:
                self._processes[name] = subprocess.Popen(
                    [sys.executable, "-P", "-m", "bench.loggers.follow", *words],
                    env=inherited(),
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # what interrupts the run does not interrupt these: the run ends them
                )
            except OSError as error:
                self._notes.append(_note(name, str(error)))

    def __enter__(self) -> LoggerProcesses:
        return self

    def end(self, folder: Path) -> list[str]:
        """Have the loggers write the finished run in `folder`. Return a line for each logger that failed."""
        for process in self._processes.values():
            assert process.stdin is not None
            with suppress(OSError):  # it is gone
                process.stdin.write(f"{folder}\n")
                process.stdin.flush()
        until = time.monotonic() + ENDING_S
        return [*self._notes, *(note for name in list(self._processes) if (note := self._ended(name, until)))]

    def _ended(self, name: str, until: float) -> str | None:
        process = self._processes.pop(name)
        try:
            output, _ = process.communicate(timeout=max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return _note(name, f"it did not end within {ENDING_S:g} s")
        finally:
            _kill(process)
        problem = output.strip() or (f"it ended with code {process.returncode}" if process.returncode else "")
        return _note(name, problem) if problem else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the loggers that still run: the run has no result."""
        until = time.monotonic() + ENDING_S / 20
        for process in self._processes.values():
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
            _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill it, whatever it does, and close its pipes."""
    process.kill()
    with process:
        process.wait()


def _note(name: str, problem: str) -> str:
    return f"logger {name} failed ({problem}); the run folder has everything"
