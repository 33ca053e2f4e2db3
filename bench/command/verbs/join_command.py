"""The verb `join`: offers processes for absent ranks to a running run, and reports when these ranks train."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

from bench.base.exitcodes import Exit
from bench.base.number_format import plural
from bench.base.usage import UsageError, path_of, usage
from bench.command.parser import Parser
from bench.config.overrides import setting
from bench.results.lease import alive, in_making
from bench.results.runfolder import CONFIG, EVENTS, FAILED, read_object, writer
from ddp.backends import BACKENDS
from ddp.core.errors import ProtocolError
from ddp.core.membership.joining import OFFERED
from ddp.core.messages.commands import Drop, Restart
from ddp.core.messages.events import Progress
from ddp.core.messages.join_events import Joined, Offered
from ddp.core.messages.run_bounds import RunHeader
from ddp.engine import ENGINES
from ddp.process.codec import decode
from ddp.regular_files import RECORDS, opened
from ddp.settings import DAY_S, MAX_WORLD

POLL_S = 0.05
ANEW_S = 2.0
"""Seconds in which a run that lost all its ranks starts them again."""


def add(parser: Parser) -> None:
    """Add the arguments of the verb."""
    parser.add_argument("path", type=path_of, help="running run: its folder, or a tree with one running run")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="processes to offer (default: 1)")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="most seconds to wait (default: 60)")


def join(options: argparse.Namespace) -> Exit:
    """Offer the processes and wait until their ranks have joined. Return FAILED if the run ends before, or loses one of
    them. Raises UsageError."""
    for name, least, most in (("ranks", 1, MAX_WORLD), ("wait", 0, DAY_S)):
        if not least <= (value := getattr(options, name)) <= most:
            raise UsageError(f"--{name} {value}: give a number from {least} to {most}")
    with usage():
        folder = _going_on(options.path)
        _check(read_object(folder / CONFIG), folder)
        records = _RecordTail(folder / EVENTS)
        offers = [f"offer-{secrets.token_hex(8)}" for _ in range(options.ranks)]
    try:
        with usage():
            _check_launcher(records.header, folder)
        return _offered(offers, folder, records, options.wait)
    finally:
        records.close()
        for home in _homes(folder):
            for offer in offers:  # that nobody has taken
                (home / offer).unlink(missing_ok=True)


def _homes(folder: Path) -> list[Path]:
    """Return the paths where the hidden folder of a run may be: the run may end at any time."""
    own = in_making(folder)
    names = (own.name, f"{own.name}{FAILED}") if own is not None else ()
    return [folder, *(folder.with_name(name) for name in names)]


def _offered(offers: Sequence[str], folder: Path, records: _RecordTail, wait_s: float) -> Exit:
    """Make the files that offer processes, and wait for what the run does with them."""
    began = time.monotonic()
    with usage(), suppress(FileNotFoundError):  # of a run that has just ended
        for offer in offers:
            (folder / offer).touch()
    answers = Answers(offers)
    while answers.open or answers.taken < len(offers):
        ended, late = writer(folder) is None, time.monotonic() - began > wait_s  # before the last look at the records
        for record in records.new():
            if (rank := answers.add(record)) is not None:
                print(f"rank {rank} has joined, {time.monotonic() - began:.1f} s after it was offered a process")
        if not answers.open and answers.taken == len(offers):
            break
        if ended or late:
            why = "has ended" if ended else f"has not answered in {wait_s:g} s"
            if ended and _begins_anew(folder):
                why = "has lost all its ranks and starts them again (repeat the command if one is lost once more)"
            print(f"the run {why}: {plural(len(answers.joined), 'rank')} joined")
            return Exit.FAILED
        time.sleep(POLL_S)
    for rank in sorted(answers.lost):
        print(f"rank {rank} was lost before it had joined")
    if spare := len(offers) - len(answers.started):
        print(f"no more ranks are absent: {spare} of the processes will be for ranks that are lost")
    return Exit.FAILED if answers.lost else Exit.OK


class Answers:
    """Follows, in a run's records, what the run did with the processes that this command has offered."""

    def __init__(self, offers: Collection[str]) -> None:
        self._offers, self._unused = frozenset(offers), list[bool]()
        self.taken = 0
        self.started, self.joined, self.lost = set[int](), set[int](), set[int]()
        """Ranks in the offered processes: all, those that have joined, and those that were given up before."""
        self._just_taken = False
        self._dropped: int | None = None
        """The rank of the last record, if that says that it is lost."""

    @property
    def open(self) -> bool:
        """Whether an accepted offer is still undecided: its rank has not started, or has not joined."""
        return self._just_taken or bool(self.started - self.joined - self.lost)

    def add(self, record: Any) -> int | None:
        """Process a record. Return its rank if it tells that a rank in an offered process has joined."""
        dropped, self._dropped = self._dropped, None
        again = isinstance(record, Restart) and record.rank == dropped
        if dropped is not None and not again:
            self.lost.add(dropped)
        if isinstance(record, Offered):  # perhaps of another command
            own = record.name in self._offers
            self._unused.append(own)
            self.taken, self._just_taken = self.taken + own, self._just_taken or own
        elif isinstance(record, Restart) and record.reason == OFFERED:
            if self._unused and self._unused.pop(0):
                self.started.add(record.rank)
        elif isinstance(record, Progress):  # an absent rank would have been started by now
            self._just_taken = False
        elif isinstance(record, Drop) and record.rank in self.started - self.joined:
            self._dropped = record.rank
        elif isinstance(record, Joined) and record.rank in self.started:
            self.joined.add(record.rank)
            return record.rank
        return None


def _going_on(path: Path) -> Path:
    """Return the hidden folder of the only running run in or at `path`. Raise ValueError if there is not exactly
    one."""
    here = (
        [path]
        if in_making(path) is not None
        else [*path.parent.glob(f".tmp-{escape(path.name)}-*"), *path.rglob(".tmp-*-*")]
    )
    going = [folder for folder in here if folder.is_dir() and writer(folder) is not None]
    if len(going) != 1:
        many = f"{len(going)} are: {', '.join(map(str, going))}" if going else "none is"
        raise ValueError(f"{path}: name one run that is going on; {many}")
    return going[0]


def _begins_anew(ended: Path) -> bool:
    """Return whether the process that wrote an ended run's folder soon writes another for the same run."""
    own = in_making(ended)
    until = time.monotonic() + ANEW_S
    while own is not None and own.here and alive(own.pid) and time.monotonic() < until:
        others = set(ended.parent.glob(f".tmp-{escape(own.name)}-*")) - {ended}
        if any((other.name, other.pid) == (own.name, own.pid) for other in map(writer, others) if other is not None):
            return True
        time.sleep(POLL_S)
    return False


def _check(config: dict[str, Any], folder: Path) -> None:
    """Raise ValueError for a run that no rank can join."""
    name, cluster = config.get("backend"), config.get("cluster")
    backend = BACKENDS.get(name) if isinstance(name, str) else None
    spec = ENGINES.get(str(config.get("engine")))
    virtual = spec is not None and spec.virtual
    if backend is None or virtual or not backend.averages or config.get("world_size") == 1:
        raise ValueError(
            f"{folder}: no rank can join a run of this mode; nccl_* and cpu_* of several ranks can be joined"
        )
    if isinstance(cluster, dict) and not cluster.get("tolerate_loss", True):
        raise ValueError(f"{folder}: no rank can join a run with cluster.tolerate_loss=false")


def _check_launcher(header: RunHeader | None, folder: Path) -> None:
    """Raise ValueError for a run whose ranks are processes of a launcher: it takes no offers. `header`: its first
    record; None: not written yet."""
    launcher = header.env.get("launcher") if header is not None else None
    if isinstance(launcher, dict) and launcher.get("ranks", 1) > 1:
        own, name = in_making(folder), launcher["name"]
        place = folder.with_name(own.name) if own is not None else folder
        raise ValueError(
            f"{folder}: {name} has started its ranks, and none can join: end the run, and start it with more processes "
            f"under {name}, with {setting('resume', str(place))} to go on from its last checkpoint"
        )


class _RecordTail:
    """Reads the first record of a file, `header`, and the records that are appended from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = opened(path, RECORDS)
        first = self._decode(self._file.readline().rstrip(b"\n"))
        self.header = first if isinstance(first, RunHeader) else None
        self._file.seek(0, 2)
        self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def new(self) -> Iterator[Any]:
        """Iterate over the records appended since the last call. Raise UsageError if the file cannot be read."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        yield from (self._decode(line) for line in lines if line)

    def _decode(self, line: bytes) -> Any:
        try:
            return decode(line) if line else None
        except ProtocolError as error:
            raise UsageError(f"{self._path}: {error}") from None
