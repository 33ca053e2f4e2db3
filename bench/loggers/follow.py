"""A logger in a process of its own: adds what a run has learnt while the run lasts, and writes the whole of it at its end.

    python -m bench.loggers.follow MODULE FOLDER OUTPUT SAID

Standard input is the run's: a line on it names the finished folder; its end without one means that the run is gone, however
it went. Says on standard output, in one line, why it could not write. What fails while the run lasts is tried again at its
end and not spoken of: the whole is written there.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.dashboard.tail import CHUNK, Lines
from bench.loggers.base import Live, Logger
from bench.loggers.info import RunInfo
from bench.loggers.recorded import Begun, Scalar, begun, learning, recorded, schedule
from bench.results.analysis.stream import sort
from bench.results.analysis.syncing import elche
from bench.results.analysis.training import Finite, epochs
from bench.results.runfolder import EVENTS
from ddp.core.commands import Drop, Evaluate, Plan
from ddp.core.errors import ProtocolError
from ddp.core.events import Evaluated, Finished, Launched, Progress, Ready, Resumed
from ddp.process.codec import Record, decode
from ddp.process.orphans import at_parents_end

LOOK_S = 1.0
"""Between two looks."""
SHARE = 0.02
"""Of the time is spent on looking, at most: a look takes the longer the more there is."""
KEPT = (Launched, Ready, Progress, Evaluated, Evaluate, Plan, Drop, Resumed, Finished)
"""Records that the series below are made of."""


@dataclass
class Followed:
    """A run folder in the making, as far as it is read."""

    run: Begun
    said: RunInfo
    records: list[Record] = field(default_factory=list)
    _lines: Lines | None = None
    _last: Record | None = None

    def read(self) -> bool:
        """Take in what is new; whether any of it may be shown. Raises OSError when the folder is not there any more."""
        self._lines = self._lines or Lines(self.run.folder / EVENTS)
        shown = False
        while lines := self._lines.more(CHUNK):
            for line in lines:
                try:
                    record = decode(line)
                except ProtocolError:
                    continue
                shown = self._keep(record) or shown
        return shown

    def _keep(self, record: Record) -> bool:
        """Whether there is something new to show. A plan has no time of its own: that of the record before it is its."""
        if isinstance(record, KEPT):
            if isinstance(record, Plan) and self._last is not None and not isinstance(self._last, KEPT):
                self.records.append(self._last)
            self.records.append(record)
        self._last = record
        return isinstance(record, Evaluated | Plan)

    def scalars(self) -> list[Scalar]:
        """Of the epochs that are over, and of the plans: what stays as it is, whatever comes."""
        launched = next((record.at for record in self.records if isinstance(record, Launched)), self.said.launched)
        stream = sort(self.records, launched)
        rows = epochs(stream, self.said.world_size, Finite())
        over = max((number for number, row in enumerate(rows, 1) if row.eval is not None), default=0)
        begun = launched if stream.resumed is None else stream.resumed.at
        startup = 0.0 if stream.begun is None else stream.begun - begun
        planned = elche(stream)
        return [*learning(rows[:over], self.said.metric, startup), *schedule(planned.plans if planned else ())]


@dataclass
class RunFollower:
    """The run of a logger."""

    logger: Logger
    folder: Path
    output: Path
    said: RunInfo
    live: Live | None = None
    given_up: bool = False
    """The run cannot be shown while it lasts."""
    _run: Followed | None = None
    _added: set[tuple[str, int]] = field(default_factory=set)

    def look(self) -> None:
        """Add what is new. Never raises."""
        if self.given_up:
            return
        try:
            if not (self.folder / EVENTS).exists():
                return
            self._run = self._run or Followed(begun(self.folder, self.said), self.said)
            if not self._run.read():
                return
            new = [one for one in self._run.scalars() if (one.name, one.step) not in self._added]
            if new and self.live is None:
                self.live = self.logger.begin(self._run.run, self.output)
                self.given_up = self.live is None
            if new and self.live is not None:
                self.live.add(new)
                self._added |= {(one.name, one.step) for one in new}
        except Exception:  # whatever a package of others' may do
            self.given_up = True

    def end(self, folder: Path | None) -> None:
        """The run is over, and lies in `folder`; None: it has no result. Raises whatever the logger raises."""
        if folder is not None:
            self.logger.write(recorded(folder), self.output, self.live)
            return
        self.look()
        if self.live is not None:
            self.live.end()


def main(words: list[str]) -> str | None:
    """Follow the run until it ends. What went wrong, in one line."""
    at_parents_end(signal.SIGCONT)  # stopped, it would not notice
    os.nice(10)  # who trains goes first
    module, folder, output, said = words
    try:
        logger: Logger = importlib.import_module(module)
        following = RunFollower(logger, Path(folder), Path(output), RunInfo(**json.loads(said)))
        pause = LOOK_S
        while not select.select([sys.stdin], [], [], pause)[0]:
            began = time.monotonic()
            following.look()
            pause = max(LOOK_S, (time.monotonic() - began) / SHARE)
        place = sys.stdin.readline().rstrip("\n")
        following.end(Path(place) if place else None)
    except Exception as error:  # whatever a package of others' may do: the run is over, and its results are written
        return f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
    return None


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print is nobody's business
    if problem := main(sys.argv[1:]):
        answer.write(problem)
        answer.flush()
    os._exit(0)  # threads of packages, which may hang, are not waited for
