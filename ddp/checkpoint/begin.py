"""Begins a run that makes checkpoints: a folder is one run's until that run ends."""

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
"""A file in the folder, locked while a run writes there."""


@contextmanager
def begun(job: Job) -> Iterator[Job]:
    """Give the job of a run that begins now a name of its own; remove parts that an earlier run did not finish, and in the
    end its own. Raises ValueError if another run writes checkpoints there."""
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
    """Remove unfinished parts of a folder that is ours: those in any other may be of a run that goes on."""
    for old in unfinished(folder) if owned else ():
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _owned(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, where it can be made and locked; yield whether it is."""
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
                fcntl.flock(file, fcntl.LOCK_UN)  # a process that a step has forked may have the file, too
            os.close(file)


def _locked(path: Path) -> int:
    """Return a file that is locked, and still there. Raises ValueError if another process has locked it, OSError."""
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
