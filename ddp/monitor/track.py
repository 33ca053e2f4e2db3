"""Collects the records of one run in a file, together with a description of the run.

Owns `RunTrack`, which any thread may write to. Its file is anonymous until a folder is assigned, so nothing is left of it
however the process ends. A released one has no file. Must not know how the records are used.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import IO, Any

from ddp import regular_files
from ddp.core.errors import Diverged
from ddp.monitor.shelf import RecordShelf, closing, nameless, write_all
from ddp.process.clock import now
from ddp.process.codec import Record, encode, stamp
from ddp.process.meter import own_memory

MEASURED = (b'{"type":"Slice"', b'{"type":"Memory"')
"""Beginnings of the lines that ranks write to files of their own, instead of sending them to the coordinator."""
SLICES = "slices-*.jsonl"
EVENTS = "events.jsonl"


@dataclass(frozen=True)
class RunSubject:
    """A description of a run, without its records."""

    model: str
    """Name of the model."""
    mode: str
    devices: tuple[str, ...]
    """Device of each rank."""
    engine: str = "loop"
    policy: str | None = None
    backend: str | None = None
    epochs: int = 0
    """Number of planned epochs; 0 if unknown."""
    speeds: tuple[float, ...] = ()
    """Emulated speed of each rank; empty: none is emulated."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings that a reader may want to see: batch size, seed, ..."""

    @property
    def name(self) -> str:
        """Return the model's name in characters that are safe in a folder name."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.model).strip("._-") or "model"

    def config(self) -> dict[str, Any]:
        """Return the description in the form of a run folder's configuration."""
        size = len(self.devices)
        config: dict[str, Any] = {
            "model": self.name,
            "engine": self.engine,
            "mode": self.mode,
            "policy": None if self.policy is None else {"name": self.policy},
            "backend": self.backend,
            "world_size": size,
            "cluster": {"speeds": list(self.speeds), "devices": list(self.devices)},
            "train": {"epochs": self.epochs} | self.settings,
        }
        digest = sha256(repr(config).encode()).hexdigest()
        return {"run_id": f"w{size}-s{self.settings.get('seed', 0)}-{digest[:8]}", "config_hash": digest, **config}


class RunTrack:
    """The records of one run."""

    def __init__(self, subject: RunSubject, seconds: float = 0.0) -> None:
        """Create the track of a run that began `seconds` ago."""
        self.subject, self.made = subject, now()
        """Time at which this object was created."""
        self.launched = self.made - seconds
        self.graph: dict[str, Any] | None = None
        """Layers of the model, once they are known."""
        self.ended: tuple[float, str, str | None] | None = None
        """(time, status, error) of the end; None: the run continues."""
        self._file: IO[bytes] | None = nameless()
        self._end = closing(self, self._file)
        self._released: Callable[[], bytes] = bytes
        """Returns the records of a released track, which has no file."""
        self._lock = threading.Lock()
        self._read: dict[tuple[Path, bytes], int] = {}
        """Number of bytes of each rank's file that were read so far for each kind of record."""

    def config(self) -> dict[str, Any]:
        """Return the configuration of the run, with the structural hash of its model once that is known."""
        known = (
            {"structural_hash": self.graph["structural_hash"]} if self.graph and "structural_hash" in self.graph else {}
        )
        return {**self.subject.config(), **known}

    def __call__(self, record: Record, at: float) -> None:
        """Append a record. `at`: seconds on the clock that all records share. Raises OSError."""
        self._append(encode(record, at) + b"\n")

    def _append(self, lines: bytes) -> None:
        with self._lock:
            if self._file is None:
                self._use(nameless(), self._released())
            assert self._file is not None
            write_all(self._file, lines)

    def _use(self, file: IO[bytes], body: bytes) -> None:
        """Continue in another file, which begins with `body`."""
        self._end()
        self._file, self._end = file, closing(self, file)
        write_all(file, body)

    def _body(self) -> bytes:
        if self._file is None:
            return self._released()
        self._file.seek(0)
        body = self._file.read()
        self._file.seek(0, os.SEEK_END)
        return body

    def lines(self) -> list[bytes]:
        """Return the records so far, sorted by time. Raises OSError."""
        with self._lock:
            body = self._body()
        return sorted(body.splitlines(), key=stamp)

    def copy(self, path: Path) -> None:
        """Write the records so far to a file. Raises OSError."""
        path.write_bytes(b"".join(line + b"\n" for line in self.lines()))

    def move(self, path: Path) -> None:
        """Move the records so far to a file at `path`, and write further ones there, unless the track was released. Raises
        OSError."""
        with self._lock:
            body = self._body()
            if self._file is None:
                path.write_bytes(body)
            else:
                self._use(path.open("w+b", buffering=0), body)

    def release(self, shelf: RecordShelf) -> None:
        """Leave the records to `shelf` and close the file, as few further ones are expected."""
        with self._lock, suppress(OSError):  # on a full disk the file stays
            if self._file is not None:
                place = shelf.put(self._body())
                self._end()
                self._file, self._released = None, partial(shelf.get, *place)

    def measure(self) -> None:
        """Append the memory use of this process for the ranks that run in it."""
        for rank, device in enumerate(self.subject.devices):
            memory = own_memory(rank, device)
            if memory is not None and (rank == 0 or memory.device_bytes is not None):
                self(memory, memory.at)

    def collect(self, folder: Path, kinds: Iterable[bytes] = MEASURED) -> None:
        """Append the records of these `kinds` that ranks have written to files in `folder` since the last call for each.
        Missing files and incomplete lines are skipped."""
        slices: list[Path] = []
        with suppress(OSError):  # the run has ended and its folder is gone
            slices = sorted(folder.glob(SLICES))
        for path, kind in product(slices or [folder / EVENTS], kinds):
            read = self._read.get((path, kind), 0)
            try:
                with regular_files.opened(path, regular_files.RECORDS) as file:
                    file.seek(read)
                    whole, _, _ = file.read().rpartition(b"\n")
            except OSError:
                continue
            self._read[path, kind] = read + len(whole) + bool(whole)
            mine = [line for line in whole.split(b"\n") if line.startswith(kind)]
            if mine:
                self._append(b"\n".join(mine) + b"\n")


def status_of(error: BaseException | None) -> tuple[str, str | None]:
    """Return (status, one line of explanation) of a run that ended with `error`."""
    if error is None:
        return "ok", None
    if isinstance(error, KeyboardInterrupt):  # an aborted run ends with one
        return "killed", "interrupted"
    why = (str(error) or type(error).__name__).splitlines()[0]
    return ("diverged" if isinstance(error, Diverged) else "failed"), why


class Looking:
    """Calls `look` every `period_s` seconds in a thread, until `close`. An OSError, such as a full disk, prints one line on
    stderr and ends the thread; the run continues."""

    def __init__(self, look: Callable[[], None], period_s: float, name: str) -> None:
        self._over = threading.Event()

        def run() -> None:
            try:
                while not self._over.wait(period_s):
                    look()
            except OSError as error:
                print(f"{name}: measures no more: {error}", file=sys.stderr)

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._over.set()
        self._thread.join()
