"""The records of one run on their way to a file, and what is known of the run beside them.

Owns `RunTrack`, which any thread may write to. Until it is given a place its file has no name, so nothing is left of it
however the process ends. Must not know what becomes of the records.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from ddp import regular_files
from ddp.process.clock import now
from ddp.process.codec import Record, encode, stamp
from ddp.process.meter import own_memory

MEASURED = (b'{"type":"Slice"', b'{"type":"Memory"')
"""How lines begin that ranks write themselves, beside what they tell the run."""
SLICES = "slices-*.jsonl"
EVENTS = "events.jsonl"


@dataclass(frozen=True)
class RunSubject:
    """What is known of a run beside its records."""

    model: str
    """What it is called."""
    mode: str
    devices: tuple[str, ...]
    """By rank."""
    engine: str = "loop"
    policy: str | None = None
    backend: str | None = None
    epochs: int = 0
    """Planned; 0: not known."""
    speeds: tuple[float, ...] = ()
    """Emulated; empty: none."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else a reader may want to know: batch size, seed, ..."""

    @property
    def name(self) -> str:
        """Return the name as a word that a folder may have."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.model).strip("._-") or "model"

    def config(self) -> dict[str, Any]:
        """Return it as the configuration of a run folder has it."""
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

    def __init__(self, subject: RunSubject) -> None:
        self.subject, self.launched = subject, now()
        self.graph: dict[str, Any] | None = None
        """Layers of the model, once they are known."""
        self.ended: tuple[float, str, str | None] | None = None
        """When, with which status, and what ended it; None: it goes on."""
        self._file: IO[bytes] = _nameless()
        self._end = self._closing()
        self._lock = threading.Lock()
        self._read: dict[Path, int] = {}
        """How far the files of ranks are read."""

    def config(self) -> dict[str, Any]:
        """Return what is known of the run, and of its model by now."""
        known = (
            {"structural_hash": self.graph["structural_hash"]} if self.graph and "structural_hash" in self.graph else {}
        )
        return {**self.subject.config(), **known}

    def __call__(self, record: Record, at: float) -> None:
        """Append a record, which happened `at` seconds on the clock of all records. Raises OSError."""
        self._append(encode(record, at) + b"\n")

    def _append(self, lines: bytes) -> None:
        with self._lock:
            left = memoryview(lines)
            while left:  # a disk that is nearly full takes a part
                left = left[self._file.write(left) :]

    def lines(self) -> list[bytes]:
        """Return the records so far, in the order of their times."""
        with self._lock:
            self._file.seek(0)
            body = self._file.read()
            self._file.seek(0, os.SEEK_END)
        return sorted(body.splitlines(), key=stamp)

    def copy(self, path: Path) -> None:
        """Write the records so far to a file. Raises OSError."""
        path.write_bytes(b"".join(line + b"\n" for line in self.lines()))

    def move(self, path: Path) -> None:
        """Write to the file at `path` from here on, which begins with what there is. Raises OSError."""
        with self._lock:
            self._file.seek(0)
            body = self._file.read()
            self._end()
            self._file = path.open("w+b", buffering=0)
            self._end = self._closing()
        self._append(body)

    def _closing(self) -> weakref.finalize[[], RunTrack]:
        """Return what closes the file when the track is gone; when the process ends a thread may still write."""
        end = weakref.finalize(self, self._file.close)
        end.atexit = False
        return end

    def measure(self) -> None:
        """Append what this process uses, where the ranks are in it."""
        for rank, device in enumerate(self.subject.devices):
            memory = own_memory(rank, device)
            if memory is not None and (rank == 0 or memory.device_bytes is not None):
                self(memory, memory.at)

    def collect(self, folder: Path, kinds: Iterable[bytes] = MEASURED) -> None:
        """Append what ranks wrote into `folder` themselves since the last call; what is gone or torn is left out."""
        slices: list[Path] = []
        with suppress(OSError):  # the run is over
            slices = sorted(folder.glob(SLICES))
        for path in slices or [folder / EVENTS]:
            try:
                with regular_files.opened(path, regular_files.RECORDS) as file:
                    file.seek(self._read.get(path, 0))
                    whole, _, _ = file.read().rpartition(b"\n")
            except OSError:
                continue
            self._read[path] = self._read.get(path, 0) + len(whole) + bool(whole)
            mine = [line for line in whole.split(b"\n") if line.startswith(tuple(kinds))]
            if mine:
                self._append(b"\n".join(mine) + b"\n")


def _nameless() -> IO[bytes]:
    """Return a new file without a name, which nothing is left of when it is closed."""
    return tempfile.TemporaryFile(buffering=0)


class Looking:
    """Calls `look` every `period_s` seconds in a thread, until `close`. An OSError, as of a full disk, ends it with one line
    on stderr: what is looked at goes on."""

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
        """End it."""
        self._over.set()
        self._thread.join()
