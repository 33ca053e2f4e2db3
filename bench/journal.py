"""`events.jsonl` in the making: written line by line while the run lasts, merged with the ranks' slices at its end."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from bench.runfolder import write_text
from ddp.runtime.codec import Record, decode, encode, stamp


class Journal:
    """Appends every record to the file as it happens, behind what is there, so that a crash leaves what was known.

    A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._count = 0

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: Record, at: float) -> None:
        """Append `record`, which happened `at` seconds on the clock of all records.

        `n` counts them in the order in which they were known here: by it, not by time, a run can be replayed."""
        self._file.write(b'{"n":%d,%b\n' % (self._count, encode(record, at)[1:]))
        self._count += 1

    def merge(self, scratch: Path) -> list[Record]:
        """Weave the ranks' `slices-<rank>.jsonl` in `scratch` into the file, in the order of time; all records."""
        lines = _whole(self._path)
        for part in sorted(scratch.glob("slices-*.jsonl")):
            lines += _whole(part)
        lines.sort(key=stamp)
        write_text(self._path, "".join(f"{line}\n" for line in lines))
        return [decode(line) for line in lines]


def _whole(path: Path) -> list[str]:
    """The lines of a file, without a last one that a killed process left unfinished."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]
