"""How far a sweep under way is, as a file in its output folder: the dashboard knows from it what is planned.

It is there while its command lives, and counts for nothing afterwards. Knows nothing of runs.
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
    """Note that `over` of the `planned` runs are over, which took about `seconds` each (None: not known yet). What cannot be
    written is left out: training goes on."""
    about = {"planned": planned, "over": over, "seconds": seconds, "pid": os.getpid(), "host": lease.HOST}
    with suppress(OSError):
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / SWEEP, json.dumps(about) + "\n")


def remove(output: Path) -> None:
    """Take it away, if it is this process's."""
    with suppress(OSError, ValueError):
        if read_object(output / SWEEP).get("pid") == os.getpid():
            (output / SWEEP).unlink()


def read(output: Path) -> dict[str, Any] | None:
    """Return `planned`, `over` and `seconds` of the sweep that writes into a folder; None: there is none that lives."""
    try:
        about = read_object(output / SWEEP)
        counts = {name: int(about[name]) for name in COUNTS}
        seconds = None if about["seconds"] is None else float(about["seconds"])
        pid, host = int(about["pid"]), str(about["host"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    lives = (pid == os.getpid() or lease.alive(pid)) if host == lease.HOST else lease.leased(output / SWEEP)
    return counts | {"seconds": seconds} if lives and 0 <= counts["over"] <= counts["planned"] else None
