"""Files from the network: whole or not there, each fetched once. Knows addresses and check sums, not what files hold."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.models.data.meter import ProgressMeter
from ddp.process.shortage import free

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


@contextmanager
def one_at_a_time(folder: Path, name: str) -> Iterator[None]:
    """Makes `folder` and lets one process at a time in, of all that use it under `name`; a process that dies lets go.

    The lock is a file that stays: removing it would let two in. OSError where the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that gets {name} ready in {folder}", file=sys.stderr)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in `folder`, downloaded if it is not there whole. To be called under `one_at_a_time`.

    What was interrupted goes on where it stopped. ValueError, in one line, with the reason of every address that failed.
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
    """Why something failed, in one line."""
    said = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.msg}"
    if isinstance(said, OSError) and said.strerror:
        return said.strerror
    return " ".join(str(said).split()) or type(said).__name__


def is_whole(path: Path, digest: str) -> bool:
    """Whether a file has this check sum."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5" if len(digest) == 32 else "sha256")
    return found.hexdigest() == digest


def _download(url: str, part: Path) -> None:
    """Appends to `part` what it lacks of the file at `url`. OSError, also for an answer that ends early."""
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
        with part.open("ab" if have else "wb", buffering=0) as file:
            done = _copy(
                answer, file, ProgressMeter(f"downloading {url}", None if length is None else have + int(length), have)
            )
        if length is not None and done < have + int(length):
            raise OSError(f"the connection ended after {done} of {have + int(length)} bytes")


def _copy(answer: http.client.HTTPResponse, file: IO[bytes], meter: ProgressMeter) -> int:
    """Raises NoRoom where the disk, and not the connection, fails."""
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


def absent(name: str, problem: str, there: str, error: BaseException) -> ValueError:
    """The one line of a data set that is not there and cannot be fetched. `there`: what to put where."""
    why = str(error) if isinstance(error, ValueError) else reason(error)
    return ValueError(f"data set {name}: {problem}, and the download failed ({why}); {there}, or set data.dir")
