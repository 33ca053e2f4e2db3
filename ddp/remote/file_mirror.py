"""Decides which files are sent with which message, and sends them.

The scratch folders of two hosts are synchronised when a message requires it: the files that it refers to are sent before
it, in pieces, into the same file that the other side has mapped. No reader sees a partial file, because the rounds of the
core determine who may write what, and a message is passed on only after its files.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddp.checkpoint.checkpoint import part_folder
from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Apply, LoadState
from ddp.core.messages.events import Finished, Saved, Shared, Snapshot
from ddp.process.codec import decode, encode
from ddp.replica.memory.flat import KINDS

PIECE = 1 << 18
"""Bytes sent at a time, so that other frames and heartbeats can be sent in between."""
_HEAD = struct.Struct(">HQQ")
"""Length of the name, offset of the piece, size of the whole file."""
_SNAPSHOT = "|".join(KINDS)
RUN, CHECKPOINT, RESUME = "run", "checkpoint", "resume"
"""First part of a name: the scratch folder, the unfinished checkpoint, the checkpoint from which the run resumes."""


def goes_along(message: Any) -> tuple[str, ...]:
    """Return patterns of the names of files that the other side needs before `message`, which is an event or an order."""
    match message:
        case Snapshot(rank=rank):
            return tuple(f"{RUN}/{kind}-{rank}.*" for kind in (*KINDS, "divergence"))  # divergence is filled in there
        case Shared(round=round) | LoadState(round=round):
            return (f"{RUN}/shared-{round}.pt",)
        case Saved(index=index, files=files):
            return tuple(f"{CHECKPOINT}/{index:06}/{name}" for name, _, _ in files)
        case Finished(rank=rank):
            return f"{RUN}/state-{rank}.pt", f"{RUN}/kept-{rank}-*.state"
        case Apply(rank=rank):
            averages = (f"{RUN}/{kind}-{who}.*" for kind in KINDS for who in (rank, "average"))
            return (*averages, f"{RUN}/divergence-{rank}.*", f"{RUN}/velocity-*")
    return ()


def from_rank(rank: int) -> re.Pattern[str]:
    """Return a pattern of the names that a rank's host may write here: only files of that rank."""
    run = rf"(?:{_SNAPSHOT}|divergence)-{rank}\.[a-z0-9]+|slices-{rank}\.jsonl|state-{rank}\.pt|shared-\d+\.pt"
    run += rf"|kept-{rank}-(?:\d+|end|evaluated-\d+)\.state"
    return re.compile(rf"{RUN}/(?:{run})|{CHECKPOINT}/\d{{6,}}/(?:rank-{rank}|model)\.pt", re.ASCII)


FROM_COORDINATOR = re.compile(rf"(?:{RUN}|{RESUME})/\w[\w-]*(?:\.\w+)?", re.ASCII)


@dataclass(frozen=True)
class FileMirror:
    """This side's files."""

    scratch: Path
    checkpoints: Path | None
    accepts: re.Pattern[str]
    """Pattern of the names that the other side may write."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Names of files that could not be written here -> why."""

    def _place(self, name: str) -> Path:
        where, _, rest = name.partition("/")
        if where == CHECKPOINT:
            if self.checkpoints is None:
                raise ProtocolError(f"{name} was sent, but this run makes no checkpoints")
            index, _, rest = rest.partition("/")
            return part_folder(self.checkpoints, int(index)) / rest
        return (self.scratch if where == RUN else self.scratch / RESUME) / rest

    def pieces(self, pattern: str) -> Iterator[bytes]:
        """Yield all files that match a pattern, in pieces; each is the body of a frame."""
        place = self._place(pattern)
        for path in sorted(place.parent.glob(place.name)):
            try:
                yield from read(path, f"{pattern.rpartition('/')[0]}/{path.name}")
            except FileNotFoundError:
                if self.scratch.exists():
                    raise
                return  # the run has ended: the files are not needed

    def write(self, body: bytes) -> None:
        """Write a received piece to its file. Raises ProtocolError for a name that the other side may not write;
        OSError."""
        if len(body) < _HEAD.size:
            raise ProtocolError("a piece of a file without a name")
        length, offset, size = _HEAD.unpack_from(body)
        name, data = name_of(body), body[_HEAD.size + length :]
        if not self.accepts.fullmatch(name) or offset + len(data) > size:
            raise ProtocolError(f"{name[:100]!r} is not for the other side to write")
        path = self._place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                written = os.pwrite(fd, data, offset)
                data, offset = data[written:], offset + written
            if offset == size < os.fstat(fd).st_size:  # the rest of an earlier file with this name
                os.ftruncate(fd, size)
        except OSError as error:  # the error of a full disk has no path
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(fd)

    def take(self, body: bytes) -> None:
        """Write a piece like `write`. If that fails, the run goes on without a part of a checkpoint, a saved step or a
        copy of the final model."""
        if self.lacking and name_of(body) in self.lacking:
            return
        try:
            self.write(body)
        except OSError as error:
            name = name_of(body)
            if not name.startswith((CHECKPOINT, f"{RUN}/kept-", f"{RUN}/state-")):
                raise
            self.lacking[name] = f"{error.strerror or error}: {error.filename or name}"
            self.forget(name)

    def amended(self, line: bytes) -> bytes:
        """Return a rank's message; if it names a part of a checkpoint that is lacking here, as one of a failed part."""
        if not self.lacking or not isinstance(event := decode(line), Saved):
            return line
        names = [f"{CHECKPOINT}/{event.index:06}/{name}" for name, _, _ in event.files]
        errors = [self.lacking.pop(name) for name in names if name in self.lacking]
        return encode(replace(event, files=(), error=errors[0])) if errors else line

    def forget(self, pattern: str) -> None:
        """Remove files that were sent and are not needed here any more."""
        place = self._place(pattern)
        for path in place.parent.glob(place.name):
            with suppress(OSError):
                path.unlink()


def name_of(body: bytes) -> str:
    """Return the name of the file that a piece is of."""
    return body[_HEAD.size : _HEAD.size + _HEAD.unpack_from(body)[0]].decode("ascii", "replace")


def read(path: Path, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield a file from `start` on, in pieces under the name `name`; an empty file is one piece."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size if stop is None else stop
        file.seek(start)
        while start < size or start == size == 0:
            data = file.read(min(PIECE, size - start))
            yield _HEAD.pack(len(name), start, size) + name.encode("ascii") + data
            start += len(data)
            if not data:
                return
