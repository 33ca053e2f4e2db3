"""Which files go along with which message, and how: the one place that knows.

The scratch folders of two hosts are kept alike where, and when, a message says so: what it speaks of travels ahead of it, in
pieces, into the very file that the other side has mapped. Nothing is ever torn, because the rounds of the core say who may
touch what, and a message is passed on only behind its files.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp.checkpoint.checkpoint import part_folder
from ddp.core.commands import Apply, LoadState
from ddp.core.errors import ProtocolError
from ddp.core.events import Finished, Saved, Shared, Snapshot
from ddp.replica.flat import KINDS

PIECE = 1 << 18
"""Bytes that travel at a time: others, and signs of life, get in between."""
_HEAD = struct.Struct(">HQQ")
"""Length of the name; where the piece begins; size of the whole."""
_SNAPSHOT = "|".join(KINDS)
RUN, CHECKPOINT, RESUME = "run", "checkpoint", "resume"
"""Where a name leads: the scratch folder, the parts of a checkpoint in the making, the checkpoint that is gone on from."""


def goes_along(message: Any) -> tuple[str, ...]:
    """Return patterns of names of files that the other side needs before `message`. Up: an event's, down: an order's."""
    match message:
        case Snapshot(rank=rank):
            return tuple(f"{RUN}/{kind}-{rank}.*" for kind in (*KINDS, "divergence"))  # the last to be filled in there
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
    """Match names of what a rank's host may write here: its own."""
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
    """Names that the other side may write."""

    def _place(self, name: str) -> Path:
        where, _, rest = name.partition("/")
        if where == CHECKPOINT:
            if self.checkpoints is None:
                raise ProtocolError(f"{name} was sent, but this run makes no checkpoints")
            index, _, rest = rest.partition("/")
            return part_folder(self.checkpoints, int(index)) / rest
        return (self.scratch if where == RUN else self.scratch / RESUME) / rest

    def pieces(self, pattern: str) -> Iterator[bytes]:
        """Iterate over the files of a pattern, whole, a frame's body each."""
        place = self._place(pattern)
        for path in sorted(place.parent.glob(place.name)):
            try:
                yield from read(path, f"{pattern.rpartition('/')[0]}/{path.name}")
            except FileNotFoundError:
                if self.scratch.exists():
                    raise
                return  # the run is over: nobody will look at them

    def write(self, body: bytes) -> None:
        """Put a piece where it belongs. Raises ProtocolError for what is not the other side's to write; OSError."""
        if len(body) < _HEAD.size:
            raise ProtocolError("a piece of a file without a name")
        length, offset, size = _HEAD.unpack_from(body)
        raw, data = body[_HEAD.size : _HEAD.size + length], body[_HEAD.size + length :]
        name = raw.decode("ascii", "replace")
        if not self.accepts.fullmatch(name) or offset + len(data) > size:
            raise ProtocolError(f"{name[:100]!r} is not for the other side to write")
        path = self._place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                written = os.pwrite(fd, data, offset)
                data, offset = data[written:], offset + written
            if offset == size < os.fstat(fd).st_size:  # of an earlier file by this name
                os.ftruncate(fd, size)
        except OSError as error:  # a full disk names no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(fd)

    def forget(self, pattern: str) -> None:
        """Remove files that have gone over and are of no use here."""
        place = self._place(pattern)
        for path in place.parent.glob(place.name):
            with suppress(OSError):
                path.unlink()


def read(path: Path, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Read a file from `start` on in pieces, under `name`; an empty one as well."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size if stop is None else stop
        file.seek(start)
        while start < size or start == size == 0:
            data = file.read(min(PIECE, size - start))
            yield _HEAD.pack(len(name), start, size) + name.encode("ascii") + data
            start += len(data)
            if not data:
                return
