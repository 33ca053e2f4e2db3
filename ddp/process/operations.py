"""What `ddp.process.profiling` leaves of a rank, as data: for those who have no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ddp import regular_files


class Operation(msgspec.Struct, array_like=True):
    """One operation on the processor."""

    name: str
    at: float
    """Seconds on the clock of the records."""
    seconds: float
    thread: int
    """As the profiler numbers them."""


def file_of(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"torch-{rank}.json"


def read(path: Path) -> list[Operation]:
    """Return the operations in the file of a rank. Raises ValueError for another file, OSError."""
    try:
        return msgspec.json.decode(regular_files.content(path), type=list[Operation])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: not the operations of a rank ({error})") from None
