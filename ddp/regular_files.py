"""Reading what others may have put into a folder: regular files of bounded size, and nothing else. The one place for it.

A named pipe keeps its reader for ever, a device may have no end, and a sparse file of a terabyte takes no room on the disk.
What is refused is an OSError like any other, with the path and what lies there. A link to a regular file is one.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader, BytesIO
from pathlib import Path

DOCUMENT = 1 << 28
"""Bytes of a file that is read as a whole, at most."""
RECORDS = 1 << 38
"""Bytes of a file that is read line by line, at most."""
LONGEST = 16 << 20
"""Bytes of a line, at most."""
BLOCK = 1 << 20
"""Bytes that are read at once, of a file that is read line by line."""
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def opened(path: Path, most: int) -> BufferedReader:
    """Open a regular file of `most` bytes at most. Raises OSError for anything else, without ever waiting for it."""
    _check(os.stat(path), path, most)  # to open a device may already do something
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    try:
        _check(os.fstat(file.fileno()), path, most)
    except OSError:
        file.close()
        raise
    return file


def content(path: Path, most: int = DOCUMENT) -> bytes:
    """Return what is in a regular file of `most` bytes at most. Raises OSError."""
    with opened(path, most) as file:
        body = file.read(most + 1)
    if len(body) > most:  # it grows
        raise _too_large(path, len(body), most)
    return body


def lines(path: Path, most: int = RECORDS) -> Iterator[bytes]:
    """Yield the lines of a regular file with their ends, none longer than `LONGEST`. Raises OSError."""
    for block in blocks(path, most):
        yield from BytesIO(block)


def blocks(path: Path, most: int = RECORDS) -> Iterator[bytes]:
    """Yield the same lines some at a time, with their ends; a last one may have none. Raises OSError."""
    rest = b""
    with opened(path, most) as file:
        while read := file.read(BLOCK):
            block = rest + read
            whole, first = block.rfind(b"\n") + 1, block.find(b"\n") + 1
            if (first or len(block)) > LONGEST:  # all others are shorter than what was read at once
                raise OSError(errno.EFBIG, f"a line of more than {LONGEST:,} bytes", str(path))
            rest = block[whole:]
            if whole:
                yield block[:whole]
    if rest:
        yield rest


def whole_lines(path: Path, most: int = RECORDS) -> Iterator[bytes]:
    """Yield the lines without their ends, and without a last one that a killed process left unfinished. Raises OSError."""
    return (line[:-1] for line in lines(path, most) if line.endswith(b"\n"))


def size(path: Path, most: int) -> int:
    """Return the bytes of a regular file of `most` bytes at most. Raises OSError for anything else."""
    found = os.stat(path)
    _check(found, path, most)
    return found.st_size


def copy(source: Path, target: Path, most: int) -> None:
    """Write what is in a regular file of `most` bytes at most into another one. Raises OSError."""
    with opened(source, most) as file, target.open("wb") as into:
        shutil.copyfileobj(file, into, 1 << 20)


def walk(root: Path, unread: list[OSError]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield as `os.walk` does, and add to `unread` what each folder says that may not be looked into."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # gone since
            unread.append(error)

    for folder, folders, files in os.walk(root, onerror=note):
        yield Path(folder), folders, files


def _check(found: os.stat_result, path: Path, most: int) -> None:
    """Raise OSError unless that is a regular file of a size that is read."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
        code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(code, f"not a file but {kind}", str(path))
    if found.st_size > most:
        raise _too_large(path, found.st_size, most)


def _too_large(path: Path, found: int, most: int) -> OSError:
    return OSError(errno.EFBIG, f"too large ({found:,} bytes, {most:,} at most)", str(path))
