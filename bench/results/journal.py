"""Writing `events.jsonl`: line by line during the run; at its end the ranks' slices are merged in.

Until then the slices are in files beside it in the run folder, so they survive any end of the run. Every line that the
parent process writes is a link of the chain (`bench.results.chain`). After the merge the chain is computed anew over
all lines.
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
from ddp.core.messages.run_bounds import RunEnd
from ddp.process.codec import Record, decode_all, encode, stamp
from ddp.process.operations import file_of


class Journal:
    """Appends every record to the file when it happens, so that a crash loses nothing that was known.

    A context manager. Existing lines are kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        known = deque(regular_files.whole_lines(path) if path.exists() else (), maxlen=1)
        self._last = digest_of(known[0]) if known else START
        """Digest of the last line."""
        self._merged = sha256()
        """Hash of the file's content after the merge."""
        self._lines = 0
        self._file = path.open("ab", buffering=0)
        self._count = 0
        self.latest = 0.0
        """The latest time of any added record."""

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, record: Record, at: float) -> None:
        """Append `record`, which happened at `at` seconds on the clock of all records. Raises OSError that names the
        file.

        Its number `n` counts records in the order in which they became known here; a replay follows that order, not the
        times.
        """
        self._append(b'{"n":%d,%b' % (self._count, encode(record, at)[1:]))
        self._count += 1
        self.latest = max(self.latest, at)

    def _append(self, body: bytes) -> bytes:
        line = linked(body, self._last)
        whole = line + b"\n"
        left = memoryview(whole)
        try:
            while left:  # a nearly full disk may accept only a part
                left = left[self._file.write(left) :]
        except OSError as error:
            error.filename = str(self._path)
            raise
        self._last = digest_of(line)
        return whole

    def keep_slices(self, scratch: Path, ranks: int) -> None:
        """Redirect the files of the ranks' slices from `scratch`, which may be memory, to the folder of this file."""
        for rank in range(ranks):
            for name in (f"slices-{rank}.jsonl", file_of(scratch, rank).name):
                (scratch / name).symlink_to(self._path.absolute().with_name(name))

    def merge(self, counted: Callable[[int], None] = lambda _: None) -> list[Record]:
        """Merge the ranks' slices into the file, in order of time, and remove their files; return all records.

        `counted` is called with their number before the work begins.
        """
        parts = sorted(self._path.parent.glob(SLICES))
        lines = woven(self._path, parts, counted)
        self._replace(lines)
        for part in parts:
            part.unlink()
        return decode_all(lines)

    def _replace(self, lines: Sequence[bytes]) -> None:
        """Replace the file's content by the lines, with digests."""
        whole = list(chained(lines))
        body = b"\n".join([*whole, b""])
        write_bytes(self._path, body)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._last = digest_of(whole[-1]) if whole else START
        self._merged, self._lines = sha256(body), len(whole)

    def end(self, record: RunEnd) -> Seal:
        """Append the last record and return the seal of the file. Raises OSError that names the file."""
        self._merged.update(self._append(encode(record)))
        return Seal(self._lines + 1, self._merged.hexdigest())


def woven(path: Path, parts: Iterable[Path], counted: Callable[[int], None] = lambda _: None) -> list[bytes]:
    """Return the lines of files of records, without digests, in order of time. Last lines that a killed process left
    unfinished are dropped. Raises OSError."""
    lines = [unlinked(line) for line in regular_files.whole_lines(path)]
    for part in parts:  # lines of ranks have no digests
        lines += regular_files.whole_lines(part)
    counted(len(lines))
    return sorted(lines, key=stamp)
