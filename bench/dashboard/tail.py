"""Follows the files of records of one run folder while they are written: whole lines only, each once.

A file that was put in another's place, or became shorter, is read from its beginning: `Tail.state` then starts anew.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from bench.dashboard.state import DashboardState, fold
from bench.results.runfolder import EVENTS, located
from bench.runner.journal import SLICES
from ddp import regular
from ddp.process.codec import decode, stamp

CHUNK = 4 << 20
"""Bytes read in one go, so that one long file does not keep the others waiting."""
_UNSEEN = re.compile(
    rb'\{(?:"n":\d+,)?"type":"(?:Slice|Train|Average|Averaged|Merged|Snapshot|Reduced|Reduce|Apply|Save|Saved|Publish|Alive)"'
)
"""Records of which nothing is shown: most of the lines."""


@dataclass
class Lines:
    """One file, and how far it is read."""

    path: Path
    identity: tuple[int, int] | None = None
    offset: int = 0
    rest: bytes = b""
    """A line that is not whole yet."""

    def more(self, limit: int) -> list[bytes] | None:
        """Lines that are new; None: this is another file than before, nothing was read. Raises OSError."""
        with regular.opened(self.path, regular.RECORDS) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self.identity not in (None, identity) or status.st_size < self.offset:
                return None
            self.identity = identity
            file.seek(self.offset)
            data = file.read(limit)
        self.offset += len(data)
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest if len(rest) <= regular.LONGEST else b""
        return lines


@dataclass
class Tail:
    """A run folder as far as it is read."""

    folder: Path
    state: DashboardState = field(default_factory=DashboardState)
    malformed: int = 0
    """Lines that are no records."""
    unread: tuple[str, ...] = ()
    """Files that are there and cannot be read, a line each."""
    _files: dict[str, Lines] = field(default_factory=dict)
    _merged: bool = False
    """What ranks measured is among the events by now."""

    def read(self) -> bool:
        """Take in what is new; whether there may be more at once."""
        files = [EVENTS, *self._parts()]
        more, unread = False, []
        for name in files:
            file = self._files.setdefault(name, Lines(self.folder / name))
            try:
                lines = file.more(CHUNK)
            except FileNotFoundError:
                continue
            except OSError as error:
                unread.append(located(error))
                continue
            if lines is None:
                self.restart()
                self._merged = True
                return True
            for line in lines:
                self._take(line)
            more = more or (len(lines) > 0 and file.offset < _size(file.path))
        self.unread = tuple(unread)
        return more

    def restart(self) -> None:
        """Read everything again."""
        self.state, self.malformed, self.unread, self._files, self._merged = DashboardState(), 0, (), {}, False

    def move(self, folder: Path) -> None:
        """The run is in another folder now: the same one under another name, or that of another attempt."""
        self.folder = folder
        known = self._files.get(EVENTS)
        if known is None or known.identity != _identity(folder / EVENTS):
            self.restart()
        for name, file in self._files.items():
            file.path = folder / name

    def _parts(self) -> list[str]:
        """What ranks measure themselves, while the run lasts: names in the folder."""
        return [] if self._merged else sorted(path.name for path in self.folder.glob(SLICES))

    def _take(self, line: bytes) -> None:
        if _UNSEEN.match(line):
            return
        try:
            record, at = decode(line), stamp(line)
            self.state = fold(self.state, record, at)
        except Exception:  # a file may hold anything: one line of it does not keep the others from being seen
            self.malformed += 1


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
