"""Tells whether a process is alive by a file lock, which the kernel releases however the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class ProcessLock:
    """Holds a lock on a file until `end` or the end of the process. A forked child does not hold it."""

    def __init__(self, path: Path) -> None:
        unseen = path.with_name(f"{path.name}.{os.getpid()}")  # invisible to others until it is locked
        self._fd = os.open(unseen, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unseen.rename(path)
        os.register_at_fork(after_in_child=self.end)

    def end(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def ended(path: Path) -> bool:
    """Return whether the process that locked the file has ended. False if no process has created the file yet."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
