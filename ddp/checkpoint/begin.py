"""Begins a run that saves checkpoints, and locks its folder: only one run at a time may save there."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from ddp.checkpoint.checkpoint import unfinished
from ddp.replica.task import Job

OWNER = ".owner"
"""Name of a file in the folder that is locked while a run saves there."""


@contextmanager
def begun(job: Job) -> Iterator[Job]:
    """Yield the job with a new name of the run. Removes unfinished parts of earlier runs before the block, and this run's
    after it. Raises ValueError if another run saves checkpoints in the folder."""
    folder = job.checkpoint_folder
    if job.run or job.checkpoints is None or folder is None:
        yield job
        return
    with _owned(folder) if job.checkpoints.every else nullcontext(False) as owned:
        _tidy(folder, owned)
        try:
            yield replace(job, run=secrets.token_hex(8))
        finally:
            _tidy(folder, owned)


def _tidy(folder: Path, owned: bool) -> None:
    """Remove unfinished parts from the folder if it is locked by this run. Otherwise they may belong to another run."""
    for old in unfinished(folder) if owned else ():
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _owned(folder: Path) -> Iterator[bool]:
    """Lock the folder if that is possible; yield whether it is locked."""
    file, path = None, folder / OWNER
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
    try:
        yield file is not None
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # a process forked by a step may still have the file open
            os.close(file)


def _locked(path: Path) -> int:
    """Return a locked file that still exists. Raises ValueError if another process has locked it; OSError."""
    while True:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                line = f"{path.parent}: another run writes checkpoints there; give each run a folder"
                raise ValueError(line) from None
            raise
        if os.fstat(file).st_nlink:
            return file
        os.close(file)
