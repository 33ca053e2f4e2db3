"""Files in the folder of a scheduler's sweep, such as the result of each cell. Knows no scheduler."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from bench.base.writing import write_text

QUIET = ("report=false", "validate=false")
"""Overrides of every cell, as the sweep writes one report at its end."""
SWEEP = "sweep.json"
"""File in the folder of a sweep: what was submitted."""
STOP = "stop"
"""File in the folder of a sweep that is cancelled."""
KEY = "key"
"""File in the folder of a sweep: the secret of runs on several hosts, while any may start."""
END_S = 25.0
"""Seconds that a cell may take to end after a signal, before it is killed: SLURM itself kills after 30."""


def result_file(folder: Path, number: int) -> Path:
    """Return the path of a cell's result."""
    return folder / f"{number}.json"


def log_file(folder: Path, number: int, rank: int) -> Path:
    """Return the path of the log of a cell's rank."""
    return folder / f"{number}-{rank}.log"


def remove_key(folder: Path) -> None:
    """Remove the secret of a sweep that is over, unless its folder is another user's."""
    with suppress(OSError):
        (folder / KEY).unlink(missing_ok=True)


def write_result(folder: Path, number: int, code: int, host: str, why: str = "") -> None:
    """Write the result of a cell atomically: its exit code, its host, and why it ended without a run."""
    write_text(result_file(folder, number), json.dumps({"code": code, "host": host, "why": why}))
