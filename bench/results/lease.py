"""Which process writes a hidden folder, and whether it lives: on this host by its process id, on other hosts of a
shared file system by a lease that it renews.

A hidden folder is named `.tmp-<name>-<pid>@<host>`; without a host it belongs to this one. The lease is the folder's
own modification time, set by the file system, as the clocks of hosts may differ. Knows nothing of the folder's content.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import psutil

LEASE_S = 180.0
"""Seconds without renewal after which a process of another host counts as dead. NFS clients see times up to 60 s
late."""
RENEWAL_S = 20.0
"""Seconds between two renewals."""
POLL_S = 2.0
"""Seconds between two looks at a lease that is waited for."""
HIDDEN = re.compile(r"\.(?P<kind>tmp|old)-(?P<name>.+)-(?P<pid>\d+)(?:@(?P<host>\w+))?")


def _host() -> str:
    """Return a name for the scope of process ids: hash of host name, boot id and PID namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # only Linux has these
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


HOST = _host()
_HELD: set[str] = set()
"""Folders whose lease this process holds."""


class Hidden(NamedTuple):
    """The parts of a hidden folder's name."""

    kind: str
    """`tmp`: being written; `old`: moved aside."""
    name: str
    """Name of the final folder."""
    pid: int
    host: str

    @property
    def here(self) -> bool:
        """Return whether its process is of this host."""
        return self.host == HOST

    @property
    def process(self) -> str:
        """Return its process as text."""
        return f"{self.pid}" if self.here else f"{self.pid} of another host"


def hidden(folder: Path) -> Hidden | None:
    """Return the parts of a hidden folder's name; None if the folder is not hidden."""
    match = HIDDEN.fullmatch(folder.name)
    return match and Hidden(match["kind"], match["name"], int(match["pid"]), match["host"] or HOST)


def in_making(folder: Path) -> Hidden | None:
    """Return the parts of the name of a folder that is being written; None for any other folder."""
    own = hidden(folder)
    return own if own is not None and own.kind == "tmp" else None


def making(place: Path) -> Path:
    """Return the hidden folder in which this process writes what becomes `place`. It is a new one, even if another
    process with this id left one, such as the first process of a container before a restart."""
    folder, zeros = _own("tmp", place), ""
    while os.path.exists(folder):
        zeros += "0"
        folder = _own("tmp", place, zeros)
    return folder


def moved(place: Path) -> Path:
    """Return the path to which this process moves `place` aside."""
    return _own("old", place)


def _own(kind: str, place: Path, zeros: str = "") -> Path:
    return place.with_name(f".{kind}-{place.name}-{zeros}{os.getpid()}@{HOST}")


def alive(pid: int) -> bool:
    """Return whether another process with this id lives on this host."""
    try:
        return pid != os.getpid() and psutil.pid_exists(pid)
    except OverflowError:  # a folder's name may contain any number
        return False


def at_work(folder: Path) -> bool:
    """Return whether this process is writing to a folder."""
    return os.path.abspath(str(folder)) in _HELD


def at_work_on(place: Path) -> bool:
    """Return whether this process is writing what becomes `place`."""
    beside = os.path.abspath(place.parent)
    made = [in_making(Path(folder)) for folder in _HELD.copy() if os.path.dirname(folder) == beside]
    return any(own is not None and own.here and own.name == place.name for own in made)


def occupied(folder: Path) -> bool:
    """Return whether any process, of this host or another, may be writing to a hidden folder."""
    own = hidden(folder)
    return own is not None and (at_work(folder) or alive(own.pid) if own.here else leased(folder))


def leased(folder: Path) -> bool:
    """Return whether the lease of a folder is still valid, by the clock of its file system."""
    try:
        return now(folder.parent) - folder.stat().st_mtime < LEASE_S
    except OSError:
        return False


def now(folder: Path) -> float:
    """Return the time of a folder's file system, seconds since the epoch; this host's time if the folder is not
    writable."""
    try:
        with TemporaryFile(dir=folder, prefix=".clock-") as probe:  # an unnamed file: a killed process leaves nothing
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def run_out(folder: Path) -> bool:
    """Wait until the lease of a folder expires, at most `LEASE_S`; return False as soon as its process renews it."""
    seen = folder.stat().st_mtime
    while leased(folder):
        time.sleep(POLL_S)
        with suppress(OSError):
            if folder.stat().st_mtime != seen:
                return False
    return True


class Lease:
    """Renews the lease of a folder until it is released, or the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._released = folder, threading.Event()
        _HELD.add(os.path.abspath(str(folder)))
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def _renew(self) -> None:
        while not self._released.wait(RENEWAL_S):
            with suppress(OSError):  # the file system may be away for a while; the next renewal may succeed
                os.utime(self._folder)

    def release(self) -> None:
        """End the renewals."""
        self._released.set()
        _HELD.discard(os.path.abspath(str(self._folder)))
