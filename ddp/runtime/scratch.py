"""The folder for a run's private files: slices, snapshots, states. In memory where there is room, gone at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOM = 1 << 30
"""Free bytes that memory must have to hold snapshots; a container may have only 64 MB."""
PREFIX = "ddp-run-"


@contextmanager
def scratch(more: int = 0) -> Iterator[Path]:
    """A new folder with room for `more` bytes beyond the usual, in memory if there is so much."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM + more
    where = memory if roomy else Path(tempfile.gettempdir())
    for left in where.glob(f"{PREFIX}*"):  # by runs that were killed before they could tidy up
        pid = left.name.split("-")[2]
        if pid.isdigit() and int(pid) != os.getpid() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=where, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
