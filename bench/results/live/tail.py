"""Follows the record files of one run folder while they are written: reads whole lines only, each once.

A file that was replaced or became shorter is read from its beginning, with a new `Tail.state`. Knows nothing of what
the state does with records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from bench.results.runfolder import EVENTS, SLICES, located
from ddp import regular_files
from ddp.process.codec import Record, decode, stamp

CHUNK = 4 << 20
"""Bytes read at once, so that one long file does not delay the others."""
_UNSEEN = re.compile(
    rb'\{(?:"n":\d+,)?"type":"(?:Slice|Train|Average|Averaged|Merged|Snapshot|Reduced|Reduce|Apply|Save|Saved|Publish|Alive|Trained)"'
)
"""Records that are not shown, most of all lines. They are not decoded."""
_EVENT = re.compile(rb'\{(?:"n":\d+,)?"type":"(?:Averaged|Merged|Snapshot|Reduced|Saved|Alive|Trained)"')
"""Those of them whose time is also that of the next command."""


class RecordFold(Protocol):
    """Anything that folds the records of a run."""

    def add(self, record: Record) -> object:
        """Add a record."""
        ...

    def advance(self, at: float) -> None:
        """Note the time of an event that is needed for nothing else."""
        ...


S = TypeVar("S", bound=RecordFold)


@dataclass
class Lines:
    """One file, and how far it has been read."""

    path: Path
    identity: tuple[int, int] | None = None
    offset: int = 0
    rest: bytes = b""
    """The beginning of a line that is not complete yet."""

    def more(self, limit: int = CHUNK) -> list[bytes] | None:
        """Read new lines; None if the file was replaced, and nothing was read. Raises OSError."""
        with regular_files.opened(self.path, regular_files.RECORDS) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self.identity not in (None, identity) or status.st_size < self.offset:
                return None
            self.identity = identity
            file.seek(self.offset)
            data = file.read(limit)
        self.offset += len(data)
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest if len(rest) <= regular_files.LONGEST else b""
        return lines

    @property
    def behind(self) -> bool:
        """Whether more can be read now."""
        return (status := _status(self.path)) is not None and self.offset < status.st_size


class Tail(Generic[S]):
    """Reads a run folder incrementally into `state`."""

    state: S
    malformed: int
    """Number of lines that are not valid records."""
    unread: tuple[str, ...]
    """A line for each file that exists and cannot be read."""
    _files: dict[str, Lines]

    def __init__(self, folder: Path, begin: Callable[[], S], measured: bool = True) -> None:
        """Begin to follow `folder`. `begin` creates the state; `measured`: also read the ranks' own measurements."""
        self.folder, self._begin, self._measured = folder, begin, measured
        self._restart(measured)

    def _restart(self, measured: bool) -> None:
        """Start over. The ranks' measurements may have been merged into the events by now."""
        self.state, self.malformed, self.unread, self._files = self._begin(), 0, (), {}
        self._apart = measured

    def read(self) -> bool:
        """Add what is new; return whether more can be read at once."""
        # The ranks' measurements are in separate files during the run.
        parts = sorted(path.name for path in self.folder.glob(SLICES)) if self._apart else []
        more, unread = False, []
        for name in (EVENTS, *parts):
            file = self._files.setdefault(name, Lines(self.folder / name))
            start = file.offset
            try:
                lines = file.more()
            except FileNotFoundError:
                continue
            except OSError as error:
                unread.append(located(error))
                continue
            if lines is None:
                self._restart(measured=False)
                return True
            for line in lines:
                self._take(line)
            more = more or (file.offset > start and file.behind)
        self.unread = tuple(unread)
        return more

    def move(self, folder: Path) -> None:
        """Continue in another folder: the same one under another name, or that of another attempt."""
        self.folder = folder
        known, status = self._files.get(EVENTS), _status(folder / EVENTS)
        if known is None or known.identity != (status and (status.st_dev, status.st_ino)):
            self._restart(self._measured)
        for name, file in self._files.items():
            file.path = folder / name

    def _take(self, line: bytes) -> None:
        try:
            if not _UNSEEN.match(line):
                self.state.add(decode(line))
            elif _EVENT.match(line):
                self.state.advance(stamp(line))
        except Exception:  # a file may contain anything; one bad line does not hide the others
            self.malformed += 1


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
