"""Downloads files. A file is complete or absent, and is downloaded once. Knows addresses and checksums, not the content."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddp.process.resource_errors import free

CONNECT_S = 20.0
"""Timeout in seconds for an answer or for further bytes: a network that drops packets must not block a run."""
CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded from any of several addresses."""

    name: str
    urls: tuple[str, ...]
    digest: str
    """Checksum of the whole file in hexadecimal: MD5 (32 digits, as published by torchvision) or SHA-256."""


class NoRoom(Exception):
    """Raised when a download cannot be written. Names the file, and the free space of its disk."""


class ProgressMeter:
    """Shows progress on standard error: on a terminal as one line that is updated, otherwise as a single line at the
    start."""

    def __init__(self, what: str, total: int | None, done: int = 0, unit: str = "MB", scale: float = 1e6) -> None:
        self.what, self.total, self.done = what, total, done
        self._unit, self._scale = unit, scale
        self._live, self._shown = sys.stderr.isatty(), 0.0

    def __enter__(self) -> ProgressMeter:
        if not self._live:
            of = "" if self.total is None else f" ({self._size(self.total)} {self._unit})"
            print(f"{self.what}{of}", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._show()
            print(file=sys.stderr)

    def add(self, amount: int) -> None:
        """Add `amount` to the work done."""
        self.done += amount
        if self._live and time.monotonic() - self._shown > 0.1:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        of = "" if self.total is None else f" of {self._size(self.total)}"
        print(f"\r{self.what}: {self._size(self.done)}{of} {self._unit}", end="\033[K", file=sys.stderr, flush=True)

    def _size(self, amount: int) -> str:
        return f"{amount / self._scale:.1f}" if self._scale > 1 else str(amount)


@contextmanager
def one_at_a_time(folder: Path, name: str) -> Iterator[None]:
    """Create `folder`, and hold a lock in the block, so only one process at a time works under `name`. A process that dies
    releases the lock.

    The lock file is never removed: after that, two processes could hold the lock. Raise OSError if the folder cannot be
    written."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that gets {name} ready in {folder}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """Return those of `names` that are not files in `folder`."""
    return [name for name in names if not (folder / name).is_file()]


def obtain(
    name: str, home: Path, folder: Path, names: Iterable[str], download: Callable[[], None], remedy: str
) -> None:
    """Ensure that the files of data set `name` are in `folder`: call `download` if some are missing, in one process at a
    time. Raise ValueError, in one line with the `remedy`, if that fails."""
    if not missing(folder, names):
        return
    try:
        with one_at_a_time(home, name):
            if missing(folder, names):
                download()
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        why = str(error) if isinstance(error, ValueError) else reason(error)
        problem = f"{', '.join(missing(folder, names))} not found in {folder}, and the download failed ({why})"
        raise ValueError(f"data set {name}: {problem}; {remedy}, or set data.dir") from error


def fetch(remote: Remote, folder: Path) -> Path:
    """Return the file in `folder`; download it if it is missing or incomplete. Call this under `one_at_a_time`.

    An interrupted download is resumed. Raise ValueError, in one line, with the reason for each address that failed.
    """
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    if path.is_file() and is_whole(path, remote.digest):
        return path
    reasons: list[str] = []
    for url in remote.urls:
        for _ in range(2):  # once more if the old part turns out to be of an earlier version of the file
            again = part.exists()
            try:
                _download(url, part)
            except NoRoom as error:  # other addresses would not help
                raise ValueError(str(error)) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                reasons.append(f"{url}: {reason(error)}")
                break
            if is_whole(part, remote.digest):
                part.replace(path)
                return path
            part.unlink()
            reasons.append(f"{url}: another file than expected, by its check sum")
            if not again:
                break
    raise ValueError("; ".join(dict.fromkeys(reasons)))


def reason(error: BaseException) -> str:
    """Return the cause of an error in one line."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.msg}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return " ".join(str(cause).split()) or type(cause).__name__


def is_whole(path: Path, digest: str) -> bool:
    """Return whether a file has this checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5" if len(digest) == 32 else "sha256").hexdigest() == digest


def _download(url: str, part: Path) -> None:
    """Append to `part` the missing rest of the file at `url`. Raise OSError, also if the connection ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "elche-bench"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=CONNECT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the part is complete already: the checksum decides
            return
        raise
    with answer:
        if answer.status != 206:  # the whole file, from its beginning
            have = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with part.open("ab" if have else "wb", buffering=0) as file:
            done = _copy(answer, file, ProgressMeter(f"downloading {url}", total, have))
        if total is not None and done < total:
            raise OSError(f"the connection ended after {done} of {total} bytes")


def _copy(answer: http.client.HTTPResponse, file: IO[bytes], meter: ProgressMeter) -> int:
    """Copy the answer to the file. Raise NoRoom if writing fails, as opposed to the connection."""
    with meter:
        while block := answer.read1(CHUNK):
            left = memoryview(block)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError as error:
                here = f"{file.name}: {error.strerror or error}, {free(Path(file.name))}"
                raise NoRoom(f"{here}; what has come is kept, and the next download goes on behind it") from error
            meter.add(len(block))
    return meter.done
