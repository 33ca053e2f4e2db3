"""Begins a run that makes checkpoints: a folder is one run's until that run ends."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ddp.checkpoint.checkpoint import unfinished
from ddp.replica.task import Job

OWNER = ".owner"
"""A file in the folder, locked while a run writes there."""


@contextmanager
def begun(job: Job) -> Iterator[Job]:
    """Give the job of a run that begins now a name of its own; remove parts that an earlier run did not finish. Raises
    ValueError if another run writes checkpoints there."""
    folder = job.checkpoint_folder
    if job.run or job.checkpoints is None or folder is None:
        yield job
        return
    with _owned(folder):
        for old in unfinished(folder):
            shutil.rmtree(old, ignore_errors=True)
        yield replace(job, run=secrets.token_hex(8))


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, where it can be made and locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(folder / OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{folder}: another run writes checkpoints there; give each run a folder") from None
            stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a process that a step has forked may have the file, too
            stack.callback((folder / OWNER).unlink, missing_ok=True)
        yield
