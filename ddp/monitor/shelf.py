"""Keeps the records of ended runs in one anonymous file, so that they need no open file each.

Must not know what the records say.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from typing import IO, Any


class RecordShelf:
    """The records of ended runs."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def put(self, body: bytes) -> tuple[int, int]:
        """Store the records of a run; return the arguments with which `get` returns them. Raises OSError."""
        with self._lock:
            if self._file is None:
                self._file = nameless()
                closing(self, self._file)
            place = self._file.seek(0, os.SEEK_END)
            write_all(self._file, body)
        return place, len(body)

    def get(self, place: int, length: int) -> bytes:
        """Return records that were stored. Raises OSError."""
        assert self._file is not None
        with self._lock:
            self._file.seek(place)
            body = b""
            while len(body) < length and (part := self._file.read(length - len(body))):
                body += part
        return body


def nameless() -> IO[bytes]:
    """Return a new anonymous file, which disappears when it is closed. Raises OSError."""
    return tempfile.TemporaryFile(buffering=0)


def write_all(file: IO[bytes], body: bytes) -> None:
    """Write to an unbuffered file, which accepts only a part on a nearly full disk. Raises OSError."""
    left = memoryview(body)
    while left:
        left = left[file.write(left) :]


def closing(owner: Any, file: IO[bytes]) -> weakref.finalize[[], Any]:
    """Return a finalizer that closes the file when its owner is garbage-collected. It does not run at exit, when a thread
    may still write."""
    end = weakref.finalize(owner, file.close)
    end.atexit = False
    return end
