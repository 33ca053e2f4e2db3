"""The progress of a running sweep, as a file in its output folder, from which the dashboard knows what is planned.

The file exists while the sweep's command runs; a file that is left behind is ignored. Knows nothing of runs.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.base.writing import write_text
from bench.results import lease
from bench.results.runfolder import read_object

SWEEP = ".sweep.json"
COUNTS = ("planned", "over")


def write(output: Path, planned: int, over: int, seconds: float | None) -> None:
    """Record that `over` of the `planned` runs have ended, one in about `seconds` (None: not known yet). Errors of
    writing are ignored, as training must go on."""
    about = {"planned": planned, "over": over, "seconds": seconds, "pid": os.getpid(), "host": lease.HOST}
    with suppress(OSError, ValueError):  # a path that is none is refused by the runs
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / SWEEP, json.dumps(about) + "\n")


def remove(output: Path) -> None:
    """Remove the file if this process wrote it."""
    with suppress(OSError, ValueError):
        if read_object(output / SWEEP).get("pid") == os.getpid():
            (output / SWEEP).unlink()


def read(output: Path) -> dict[str, Any] | None:
    """Return `planned`, `over` and `seconds` of the sweep that writes into a folder; None if no such process lives."""
    try:
        about = read_object(output / SWEEP)
        counts = {name: int(about[name]) for name in COUNTS}
        seconds = None if about["seconds"] is None else float(about["seconds"])
        pid, host = int(about["pid"]), str(about["host"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    lives = (pid == os.getpid() or lease.alive(pid)) if host == lease.HOST else lease.leased(output / SWEEP)
    return counts | {"seconds": seconds} if lives and 0 <= counts["over"] <= counts["planned"] else None
