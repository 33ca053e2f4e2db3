"""Files from the network: whole or not there, each fetched once. Knows addresses and check sums, not what files hold."""

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
"""A network that swallows packets must not hang a run: no answer, or no further byte, for so long is a failure."""
CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file that can be fetched from any of some addresses."""

    name: str
    urls: tuple[str, ...]
    digest: str
    """Of the whole file in hexadecimal digits: MD5 (32 digits, what torchvision publishes) or SHA-256."""


class NoRoom(Exception):
    """A download cannot be written. Names the file, and how much is free there."""


class ProgressMeter:
    """How far something long is, on standard error: one line on a terminal that is written over, elsewhere one in all."""

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
        """Count `amount` more as done."""
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
    """Make `folder` and let in one process at a time, of all that use it under `name`; a process that dies lets go.

    The lock is a file that stays: removing it would let two in. Raise OSError where the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that gets {name} ready in {folder}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names of files that are not in `folder`."""
    return [name for name in names if not (folder / name).is_file()]


def obtain(
    name: str, home: Path, folder: Path, names: Iterable[str], download: Callable[[], None], remedy: str
) -> None:
    """Have the files of data set `name` in `folder`: `download` them if some are missing, one process at a time in `home`.

    Raise ValueError, in one line with the `remedy`, where that fails."""
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
    """Return the file in `folder`, downloaded if it is not there whole. To be called under `one_at_a_time`.

    What was interrupted goes on where it stopped. Raise ValueError, in one line, with the reason of every failed address.
    """
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    if path.is_file() and is_whole(path, remote.digest):
        return path
    reasons: list[str] = []
    for url in remote.urls:
        for _ in range(2):  # a part that was left by a file that is another today is found out at the end: once more
            again = part.exists()
            try:
                _download(url, part)
            except NoRoom as error:  # nor has it for what other addresses have
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
    """Return why something failed, in one line."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.msg}"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return " ".join(str(cause).split()) or type(cause).__name__


def is_whole(path: Path, digest: str) -> bool:
    """Tell whether a file has this check sum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5" if len(digest) == 32 else "sha256").hexdigest() == digest


def _download(url: str, part: Path) -> None:
    """Append to `part` what it lacks of the file at `url`. Raise OSError, also for an answer that ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "elche-bench"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=CONNECT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing beyond what is there: the check sum will tell
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
    """Raise NoRoom where the disk, and not the connection, fails."""
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
