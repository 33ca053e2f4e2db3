"""Reads files from folders that others may write to: only regular files of bounded size. All such reads go through this
module.

A named pipe blocks its reader for ever, a device may have no end, and a sparse file of a terabyte needs no disk space. A
refused file raises OSError with its path and kind. A link to a regular file is accepted.
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
"""Maximum size in bytes of a file that is read as a whole."""
RECORDS = 1 << 38
"""Maximum size in bytes of a file that is read line by line."""
LONGEST = 16 << 20
"""Maximum length of a line, in bytes."""
BLOCK = 1 << 20
"""Bytes that are read at once from a file that is read line by line."""
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def opened(path: Path, most: int) -> BufferedReader:
    """Open a regular file of at most `most` bytes. Raises OSError for anything else, and never blocks."""
    _check(os.stat(path), path, most)  # before opening: to open a device may already have an effect
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb")
    try:
        _check(os.fstat(file.fileno()), path, most)
    except OSError:
        file.close()
        raise
    return file


def content(path: Path, most: int = DOCUMENT) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises OSError."""
    with opened(path, most) as file:
        size = os.fstat(file.fileno()).st_size
        body = file.read(
            size + 1
        )  # `read` takes as much memory as it may need, which for `most` costs more than the file
        if len(body) > size:  # it has grown, or is of a kind that tells no size
            body += file.read(most)
    if len(body) > most:  # the file has grown since it was opened
        raise _too_large(path, len(body), most)
    return body


def lines(path: Path, most: int = RECORDS) -> Iterator[bytes]:
    """Yield the lines of a regular file with their line ends. Raises OSError, also for a line longer than `LONGEST`."""
    for block in blocks(path, most):
        yield from BytesIO(block)


def blocks(path: Path, most: int = RECORDS) -> Iterator[bytes]:
    """Yield blocks of whole lines of a regular file; the last line may have no line end. Raises OSError as `lines`."""
    rest = b""
    with opened(path, most) as file:
        while read := file.read(BLOCK):
            block = rest + read
            whole, first = block.rfind(b"\n") + 1, block.find(b"\n") + 1
            if (first or len(block)) > LONGEST:  # all other lines of the block are shorter than BLOCK
                raise OSError(errno.EFBIG, f"a line of more than {LONGEST:,} bytes", str(path))
            rest = block[whole:]
            if whole:
                yield block[:whole]
    if rest:
        yield rest


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines without their line ends. Leaves out a last line that a killed process did not finish. Raises
    OSError."""
    return (line[:-1] for line in lines(path) if line.endswith(b"\n"))


def size(path: Path, most: int) -> int:
    """Return the size in bytes of a regular file of at most `most` bytes. Raises OSError for anything else."""
    status = os.stat(path)
    _check(status, path, most)
    return status.st_size


def copy(source: Path, target: Path, most: int) -> None:
    """Copy a regular file of at most `most` bytes to `target`. Raises OSError."""
    with opened(source, most) as file, target.open("wb") as into:
        shutil.copyfileobj(file, into, 1 << 20)


def walk(root: Path, unread: list[OSError]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield the same as `os.walk`, and append to `unread` the error of each folder that cannot be read."""

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # deleted meanwhile
            unread.append(error)

    for folder, folders, files in os.walk(root, onerror=note):
        yield Path(folder), folders, files


def _check(status: os.stat_result, path: Path, most: int) -> None:
    """Raise OSError unless the file is a regular one of at most `most` bytes."""
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "something else")
        code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(code, f"not a file but {kind}", str(path))
    if status.st_size > most:
        raise _too_large(path, status.st_size, most)


def _too_large(path: Path, count: int, most: int) -> OSError:
    return OSError(errno.EFBIG, f"too large ({count:,} bytes, {most:,} at most)", str(path))
