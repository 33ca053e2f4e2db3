"""A logger in a process of its own: adds scalars while a run lasts, and writes the whole run at its end.

    python -m bench.loggers.follow MODULE FOLDER OUTPUT SAID

The run holds the other end of standard input. A line on it names the finished folder; its end without a line means
that the run's process has ended without a result. Writes one line on standard output if it could not write the run.
Errors while the run lasts are not reported, as the whole run is written again at its end.
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
from functools import partial
from pathlib import Path

from bench.loggers import RunInfo
from bench.loggers.base import Live, Logger
from bench.loggers.recorded import Scalar, begun, learning, measured, recorded, schedule
from bench.results.analysis.syncing import plan_row
from bench.results.analysis.training import Finite, epoch_row
from bench.results.live.run import RunFigures, is_change
from bench.results.live.tail import Tail
from bench.results.schema import Epoch
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Resumed
from ddp.process.codec import Record
from ddp.process.orphans import at_parents_end
from ddp.registries import place_of

OURS = "bench.loggers."
"""Beginning of the names of our own loggers' modules."""
LOOK_S = 1.0
"""Seconds between two reads of the records."""
SHARE = 0.02
"""Most share of the time spent on reading: a read takes longer the more records there are."""


class Learning:
    """Turns records into final scalars: those of finished epochs, and of plans."""

    def __init__(self, info: RunInfo) -> None:
        self._info, self._figures = info, RunFigures()
        self._last: Epoch | None = None
        self._plan: Plan | None = None
        self._plans = 0
        self.scalars: list[Scalar] = []
        """Scalars not yet passed on."""

    def add(self, record: Record) -> None:
        """Take note of a record."""
        if isinstance(record, Resumed):  # plans are counted in the rest alone, as in the result
            self._plan, self._plans = None, 0
            self.scalars = [scalar for scalar in self.scalars if not _of_plan(scalar.name)]
        for figures in self._figures.add(record):
            row, before = epoch_row(figures, self._info.world_size, Finite()), self._last
            self._last = row
            learnt = learning(row, before, self._info.metric, self._figures.startup)
            self.scalars += measured(learnt, self._info.timing)
        if isinstance(record, Plan) and not record.in_step and is_change(record, self._plan):
            seconds = self._figures.since(self._figures.heard)
            self.scalars += schedule(plan_row(record, seconds), self._plans)
            self._plan, self._plans = record, self._plans + 1

    def advance(self, at: float) -> None:
        """Take note of the time of an event."""
        self._figures.advance(at)

    @property
    def earlier(self) -> float:
        """Return the seconds from the first launch to the last one."""
        resumed = self._figures.resumed
        return 0.0 if resumed is None else self._figures.since(resumed.at)


def _of_plan(name: str) -> bool:
    return name == "schedule/anchor" or name.endswith("/steps_per_window")


@dataclass
class RunFollower:
    """Follows one run for a logger."""

    logger: Logger
    folder: Path
    output: Path
    info: RunInfo
    live: Live | None = None
    given_up: bool = False
    """Whether showing the running run has failed for good."""
    _added: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._tail = Tail(self.folder, partial(Learning, self.info), measured=False)

    def look(self) -> None:
        """Add the new scalars. Never raises."""
        if self.given_up:
            return
        try:
            while self._tail.read():
                pass
            scalars, self._tail.state.scalars = self._tail.state.scalars, []
            new = [scalar for scalar in scalars if (scalar.name, scalar.step) not in self._added]
            if new and self.live is None:
                run = begun(self.folder, self.info, self._tail.state.earlier)
                self.live = self.logger.begin(run, self.output)
                self.given_up = self.live is None
            if new and self.live is not None:
                self.live.add(new)
                self._added |= {(scalar.name, scalar.step) for scalar in new}
        except Exception:  # whatever a package of others' may do
            self.given_up = True

    def end(self, folder: Path | None) -> None:
        """Write the finished run in `folder`; None: it has no result. Raises the logger's exceptions."""
        if folder is not None:
            self.logger.write(recorded(folder), self.output, self.live)
            return
        self.look()
        if self.live is not None:
            self.live.end()


def main(words: list[str]) -> str | None:
    """Follow the run until it ends. Return an error in one line, or None."""
    at_parents_end(signal.SIGCONT)  # stopped, it would not notice
    os.nice(10)  # who trains goes first
    module, folder, output, info = words
    try:
        logger: Logger = importlib.import_module(module)
        following = RunFollower(logger, Path(folder), Path(output), RunInfo(**json.loads(info)))
        pause = LOOK_S
        while not select.select([sys.stdin], [], [], pause)[0]:
            began = time.monotonic()
            following.look()
            pause = max(LOOK_S, (time.monotonic() - began) / SHARE)
        place = sys.stdin.readline().rstrip("\n")
        following.end(Path(place) if place else None)
    except Exception as error:  # whatever a package of others' may do: the run is over, and its results are written
        where = "" if module.startswith(OURS) else f"{place_of(error, module)}: "  # in who else's file
        return f"{where}{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
    return None


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print is nobody's business
    if problem := main(sys.argv[1:]):
        answer.write(problem)
        answer.flush()
    os._exit(0)  # threads of packages, which may hang, are not waited for
