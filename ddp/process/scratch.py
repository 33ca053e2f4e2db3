"""The folder for a run's private files: slices, snapshots, states. In memory if there is room; removed at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import util
from pathlib import Path

from ddp.process.process_lock import ProcessLock, ended
from ddp.process.resource_errors import enough

ROOM = 1 << 30
"""Bytes of memory that must be free to use a folder in memory; in a container /dev/shm may have only 64 MB."""
PREFIX = "ddp-run-"
LONGEST_PLACE = 103 - len(f"/{PREFIX}12345678/listener-12345678")
"""Bytes of the path of a folder in which there can be a folder of sockets: their whole path has at most 103 (macOS)."""
OWNER = ".owner"
"""A file in the folder that is locked while its run lasts. Containers may share /dev/shm and not see each other's
processes."""


def write_whole(path: Path, text: str) -> None:
    """Write a file of the folder so that others see all of it or nothing, even if this process is killed meanwhile."""
    unseen = path.with_name(f".{path.name}.{os.getpid()}")
    unseen.write_text(text, encoding="utf-8")
    unseen.rename(path)


@contextmanager
def scratch(more: int = 0) -> Iterator[Path]:
    """Create a folder with room for `more` bytes beyond the usual, in memory if that fits. Raises OutOfResources."""
    where, prefix = _tidied(more), f"{PREFIX}{os.getpid()}-"
    with enough(f"no folder for a run's private files can be made in {where} (TMPDIR names another place)"):
        made = tempfile.TemporaryDirectory(prefix=prefix, dir=where, ignore_cleanup_errors=True)
    with made as folder:
        lock: ProcessLock | None = None
        with suppress(OSError):  # this file system has no locks: then nobody considers the folder abandoned
            lock = ProcessLock(Path(folder) / OWNER)
        try:
            yield Path(folder)
        finally:
            if lock is not None:
                lock.end()


def lasting() -> Path:
    """Create a folder for sockets that is removed when this process ends. Raises OutOfResources."""
    where = _place_of_sockets()
    with enough(f"no folder for sockets can be made in {where} (TMPDIR names another place)"):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    with suppress(OSError):
        ProcessLock(folder / OWNER)
    util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-100)  # not by forked children
    return folder


def _tidied(more: int) -> Path:
    """Return the place for a new folder. What killed runs have left is removed first: it may be what takes the room."""
    memory, disk = _tidied_places()
    return memory if _writable(memory) and shutil.disk_usage(memory).free > ROOM + more else disk


def _place_of_sockets() -> Path:
    """Return the place for a folder of sockets, which take no room but may have no long path."""
    memory, disk = _tidied_places()
    if _writable(memory):
        return memory
    return disk if len(os.fsencode(disk)) <= LONGEST_PLACE else Path("/tmp")


def _tidied_places() -> tuple[Path, Path]:
    with enough("no folder for a run's private files"):
        memory, disk = places()
    for place in (memory, disk):
        tidy(place)
    return memory, disk


def _writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)


def places() -> tuple[Path, Path]:
    """Return where such folders are: in memory, and on disk."""
    return Path("/dev/shm"), Path(tempfile.gettempdir())


def tidy(where: Path) -> None:
    """Remove the folders of runs that were killed before they could do so. A folder without a lock file may be a new
    one."""
    for left in where.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's folder
            if ended(left / OWNER):
                shutil.rmtree(left, ignore_errors=True)
