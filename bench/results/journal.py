"""`events.jsonl` in the making: written line by line while the run lasts, merged with the ranks' slices at its end.

Until then the slices lie beside it, in the run folder: whatever ends the run, they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from bench.base.writing import write_text
from bench.results.runfolder import SLICES
from ddp import regular_files
from ddp.process.codec import Record, decode, encode, stamp
from ddp.process.operations import file_of


class Journal:
    """Appends every record to the file as it happens, behind what is there, so that a crash leaves what was known.

    A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._count = 0

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, record: Record, at: float) -> None:
        """Append `record`, which happened `at` seconds on the clock of all records. Raise OSError that names the file.

        `n` counts them in the order in which they were known here: by it, not by time, a run can be replayed."""
        left = memoryview(b'{"n":%d,%b\n' % (self._count, encode(record, at)[1:]))
        try:
            while left:  # a disk that is nearly full takes a part
                left = left[self._file.write(left) :]
        except OSError as error:
            error.filename = str(self._path)
            raise
        self._count += 1

    def keep_slices(self, scratch: Path, ranks: int) -> None:
        """Make what ranks measure land beside the file, not in `scratch`, which may be memory."""
        for rank in range(ranks):
            for name in (f"slices-{rank}.jsonl", file_of(scratch, rank).name):
                (scratch / name).symlink_to(self._path.absolute().with_name(name))

    def merge(self, counted: Callable[[int], None] = lambda _: None) -> list[Record]:
        """Weave the ranks' slices into the file, in the order of time, and remove them; return all records.

        `counted` gets their number before the work begins."""
        parts = sorted(self._path.parent.glob(SLICES))
        lines = woven(self._path, parts, counted)
        write_text(self._path, "".join(f"{line}\n" for line in lines))
        for part in parts:
            part.unlink()
        return [decode(line) for line in lines]


def woven(path: Path, parts: Iterable[Path], counted: Callable[[int], None] = lambda _: None) -> list[str]:
    """Return the lines of files of records, in the order of time, without last ones that a killed process left unfinished.

    Raise OSError."""
    lines = [line.decode("utf-8") for file in (path, *parts) for line in regular_files.whole_lines(file)]
    counted(len(lines))
    return sorted(lines, key=stamp)
