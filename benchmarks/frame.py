"""What measurements share: how their commands begin and end, runs of `bench`, tables in Markdown, pages in `reports`.

`benchmarks.documents` writes tables between marks of a document."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any, NoReturn

import psutil
from tabulate import tabulate

from bench.base.exitcodes import Exit
from bench.base.interrupts import ENDING
from ddp.process.cores import cores

REPORTS = Path(__file__).resolve().parents[1] / "reports"
PATIENCE_S = 1.0
"""Seconds in which interrupted commands end their runs, and fork servers remove the files of a process that was killed."""
_ended = Event()
"""Set once this measurement has ended its processes: its threads start no others."""


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run a measurement, and exit with the code that it returns.

    Ctrl-C, SIGTERM and SIGHUP end it, and no process that it started is left then, nor after an exception. Processes are
    ended before the stack is unwound: a pool on it would wait for all its work otherwise. Main thread only."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under `nohup`
            signal.signal(number, _interrupted)
    try:
        code = main()
    except KeyboardInterrupt:  # of a run in this process, which handles signals itself
        end_processes()
        code = Exit.KILLED
    except Exception:
        end_processes()
        raise
    sys.exit(code)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    end_processes()
    sys.exit(Exit.KILLED)


def end_processes() -> None:
    """End all processes that this one has started, and theirs.

    Workers of pools are killed, as they would begin their next work. What their runs have started notices that, as after
    any SIGKILL. Commands are interrupted. What is left after `PATIENCE_S` is killed."""
    _ended.set()
    started, workers = _started(), {worker.pid for worker in multiprocessing.active_children()}
    for process in started:
        with suppress(psutil.NoSuchProcess):
            if process.pid in workers:
                process.kill()
            elif process.ppid() == os.getpid():
                process.terminate()
    left = {*_living_after(started), *_started()}
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _living_after(left)


def _living_after(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return which of the processes still live after `PATIENCE_S`; none as soon as all have ended. Leaves their exit codes
    to whoever waits for them."""
    living, until = list(filter(_lives, processes)), time.monotonic() + PATIENCE_S
    while living and time.monotonic() < until:
        time.sleep(0.02)
        living = list(filter(_lives, living))
    return living


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _started() -> list[psutil.Process]:
    """Return what descends from this process, without Python's resource tracker, which ends with it."""
    tracker: Any = resource_tracker._resource_tracker  # it has no public name
    return [process for process in psutil.Process().children(recursive=True) if process.pid != tracker._pid]


def options(doc: str | None, write: str = "") -> argparse.ArgumentParser:
    """Return the parser of a measurement whose module has the text `doc`. `write`: what its option `--write` does."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if write:
        parser.add_argument("--write", action="store_true", help=write)
    return parser


def bench(*words: object, **how: Any) -> None:
    """Run `python -m bench` with these words, without its output. `how`: further arguments of `subprocess.run`. Raises
    CalledProcessError; KeyboardInterrupt in a thread of a measurement that has ended."""
    if _ended.is_set():
        raise KeyboardInterrupt
    line = [sys.executable, "-m", "bench", *map(str, words)]
    subprocess.run(line, **{"check": True, "stdout": subprocess.DEVNULL, **how})


def table(rows: Iterable[Any], headers: Sequence[str] | str = "keys", left: int | None = None) -> str:
    """Return a table in Markdown of rows of cells, or of dictionaries. Columns from `left` on are aligned to the right."""
    listed = list(rows)
    align = None if left is None else ["left"] * left + ["right"] * (len(headers) - left)
    return tabulate(
        listed, headers, tablefmt="github" if align is None else "pipe", disable_numparse=True, colalign=align
    )


def machine_load() -> str:
    """Return a sentence on the cores of this machine, and how busy they are."""
    return f"Measured with {cores()} cores at a load of {os.getloadavg()[1]:.0f} over five minutes."


def write_report(place: str, *parts: str) -> None:
    """Write a page below `reports`, its parts apart by a line."""
    path = REPORTS / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")
