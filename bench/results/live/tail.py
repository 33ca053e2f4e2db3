"""Follows the files of records of one run folder while they are written: whole lines only, each once.

A file that was put in another's place, or became shorter, is read from its beginning: `Tail.state` then starts anew. Knows
nothing of what the state makes of the records.
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
"""Bytes read in one go, so that one long file does not keep the others waiting."""
_UNSEEN = re.compile(
    rb'\{(?:"n":\d+,)?"type":"(?:Slice|Train|Average|Averaged|Merged|Snapshot|Reduced|Reduce|Apply|Save|Saved|Publish|Alive|Trained)"'
)
"""Records of which nothing is shown: most of the lines. They are not decoded."""
_EVENT = re.compile(rb'\{(?:"n":\d+,)?"type":"(?:Averaged|Merged|Snapshot|Reduced|Saved|Alive|Trained)"')
"""Those whose time is that of the command after them."""


class RecordFold(Protocol):
    """What is made of the records of a run."""

    def add(self, record: Record) -> object:
        """Take note of a record."""
        ...

    def advance(self, at: float) -> None:
        """Take note of the time of an event of which nothing else is needed."""
        ...


S = TypeVar("S", bound=RecordFold)


@dataclass
class Lines:
    """One file, and how far it is read."""

    path: Path
    identity: tuple[int, int] | None = None
    offset: int = 0
    rest: bytes = b""
    """A line that is not whole yet."""

    def more(self, limit: int = CHUNK) -> list[bytes] | None:
        """Read the lines that are new; None: this is another file than before, nothing was read. Raises OSError."""
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
        """Whether there is more to read."""
        return (status := _status(self.path)) is not None and self.offset < status.st_size


class Tail(Generic[S]):
    """A run folder as far as it is read."""

    state: S
    malformed: int
    """Lines that are no records."""
    unread: tuple[str, ...]
    """Files that are there and cannot be read, a line each."""
    _files: dict[str, Lines]

    def __init__(self, folder: Path, begin: Callable[[], S], measured: bool = True) -> None:
        """Begin. `begin` makes the state; `measured`: read what ranks measure themselves, too."""
        self.folder, self._begin, self._measured = folder, begin, measured
        self._restart(measured)

    def _restart(self, measured: bool) -> None:
        """Read everything again. What ranks measured may be among the events by now."""
        self.state, self.malformed, self.unread, self._files = self._begin(), 0, (), {}
        self._apart = measured

    def read(self) -> bool:
        """Take in what is new; return whether there may be more at once."""
        # What ranks measure themselves lies beside the events while the run lasts.
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
        """Follow the run in another folder: the same one under another name, or that of another attempt."""
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
        except Exception:  # a file may hold anything: one line of it does not keep the others from being seen
            self.malformed += 1


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
