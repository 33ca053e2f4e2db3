"""The result of a cell that a scheduler runs, as a file in the folder of its sweep. Knows no scheduler."""

from __future__ import annotations

import json
import os
from pathlib import Path

QUIET = ("report=false", "validate=false")
"""Overrides of each: the sweep reports once."""
SWEEP = "sweep.json"
"""File in the folder of a sweep: what was submitted."""
STOP = "stop"
"""File in the folder of a sweep that is cancelled."""
KEY = "key"
"""File in the folder of a sweep: the secret of runs on several hosts, while any may start."""
END_S = 25.0
"""What a cell gets to end when it is told to, before it is killed: SLURM itself gives 30."""


def result_file(folder: Path, number: int) -> Path:
    """Return where the result of a cell lies."""
    return folder / f"{number}.json"


def log_file(folder: Path, number: int, rank: int) -> Path:
    """Return where the output of a rank of a cell lies."""
    return folder / f"{number}-{rank}.log"


def remove_key(folder: Path) -> None:
    """Remove the secret of a sweep that is over."""
    (folder / KEY).unlink(missing_ok=True)


def write_result(folder: Path, number: int, code: int, host: str, why: str = "") -> None:
    """Write the exit code of a cell, where it ran, and why it ended without a run, whole or not at all."""
    file = result_file(folder, number)
    part = file.with_suffix(f".part-{os.getpid()}")
    part.write_text(json.dumps({"code": code, "host": host, "why": why}), encoding="utf-8")
    part.replace(file)
