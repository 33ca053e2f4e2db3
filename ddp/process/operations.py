"""The recordings of `ddp.process.profiling`, as data that can be read without torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ddp import regular_files


class Operation(msgspec.Struct, array_like=True):
    """One operation on the CPU."""

    name: str
    at: float
    """Start in seconds, on the clock of the records."""
    seconds: float
    thread: int
    """The profiler's number of the thread."""


def file_of(folder: Path, rank: int) -> Path:
    """Return the path of a rank's file."""
    return folder / f"torch-{rank}.json"


def read(path: Path) -> list[Operation]:
    """Return the operations in a rank's file. Raises ValueError for another file, and OSError."""
    try:
        return msgspec.json.decode(regular_files.content(path), type=list[Operation])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: not the operations of a rank ({error})") from None
