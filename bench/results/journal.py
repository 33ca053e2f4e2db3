"""`events.jsonl` in the making: written line by line while the run lasts, merged with the ranks' slices at its end.

Until then the slices lie beside it, in the run folder: whatever ends the run, they are there. Every line that the parent
writes is a link of the chain (`bench.results.chain`); when the slices are among them, the chain is made anew over all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from bench.base.writing import write_bytes
from bench.results.chain import START, Seal, chained, digest_of, linked, unlinked
from bench.results.runfolder import SLICES
from ddp import regular_files
from ddp.core.run_bounds import RunEnd
from ddp.process.codec import Record, decode_all, encode, stamp
from ddp.process.operations import file_of


class Journal:
    """Appends every record to the file as it happens, behind what is there, so that a crash leaves what was known.

    A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        known = deque(regular_files.whole_lines(path) if path.exists() else (), maxlen=1)
        self._last = digest_of(known[0]) if known else START
        """Digest of the last line."""
        self._merged = sha256()
        """Of all that is in the file, once it is merged."""
        self._lines = 0
        self._file = path.open("ab", buffering=0)
        self._count = 0
        self.latest = 0.0
        """The latest time of what was added."""

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, record: Record, at: float) -> None:
        """Append `record`, which happened `at` seconds on the clock of all records. Raise OSError that names the file.

        `n` counts them in the order in which they were known here: by it, not by time, a run can be replayed."""
        self._append(b'{"n":%d,%b' % (self._count, encode(record, at)[1:]))
        self._count += 1
        self.latest = max(self.latest, at)

    def _append(self, body: bytes) -> bytes:
        line = linked(body, self._last)
        whole = line + b"\n"
        left = memoryview(whole)
        try:
            while left:  # a disk that is nearly full takes a part
                left = left[self._file.write(left) :]
        except OSError as error:
            error.filename = str(self._path)
            raise
        self._last = digest_of(line)
        return whole

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
        self._replace(lines)
        for part in parts:
            part.unlink()
        return decode_all(lines)

    def _replace(self, lines: Sequence[bytes]) -> None:
        """Put the lines, with digests, in place of what is in the file."""
        whole = list(chained(lines))
        body = b"\n".join([*whole, b""])
        write_bytes(self._path, body)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._last = digest_of(whole[-1]) if whole else START
        self._merged, self._lines = sha256(body), len(whole)

    def end(self, record: RunEnd) -> Seal:
        """Append the last record; return what binds the whole file. Raise OSError that names the file."""
        self._merged.update(self._append(encode(record)))
        return Seal(self._lines + 1, self._merged.hexdigest())


def woven(path: Path, parts: Iterable[Path], counted: Callable[[int], None] = lambda _: None) -> list[bytes]:
    """Return the lines of files of records, without digests, in the order of time, without last ones that a killed process
    left unfinished.

    Raise OSError."""
    lines = [unlinked(line) for line in regular_files.whole_lines(path)]
    for part in parts:  # no rank makes links
        lines += regular_files.whole_lines(part)
    counted(len(lines))
    return sorted(lines, key=stamp)
