"""Shows a run while it lasts: one changing line in a terminal, else a line for each epoch. The log has all lines.

`bench.runner.live_view` makes the lines. Does not know folders.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from bench.base.console import PipeSafeConsole, cut, verbosity
from bench.config.spec import RunSpec
from bench.results.analysis.slow import row, sentence
from bench.results.live.run import RunFigures
from bench.runner.live_view import epoch_line, lost_line, rank_lines, ready_line, record_line, run_line
from ddp.core.anomalies.slowness import HOST, SlowRank
from ddp.core.figures.summary import EpochFigures
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Failed, Ready
from ddp.core.messages.join_events import Joined
from ddp.process.clock import now
from ddp.process.codec import Record

MANY = 50_000
"""Number of records whose analysis takes about a second or more."""
REFRESH_HZ = 4


class ProgressDisplay:
    """Shows a run on `console` and writes its lines to `log`. A context manager."""

    def __init__(
        self, spec: RunSpec, console: Console, log: TextIO, before: Iterable[Record] = (), absent: int = 0
    ) -> None:
        """Show the run `spec`. `before`: the records so far: of the launch, and of the run that it resumes. `absent`: the
        number of ranks that are absent at the start."""
        self._run = RunFigures(spec.epochs)
        self._last: EpochFigures | None = None
        for record in before:
            for epoch in self._run.add(record):
                self._last = epoch
        self._spec, self._console, self._log = spec, console, log
        self._above = console.above if isinstance(console, PipeSafeConsole) else None
        self._detail = verbosity()
        self._ready, self._first = set[int](), spec.world_size - absent
        self._failed: dict[int, Failed] = {}
        self._traced: set[str] = set()
        """Tracebacks already written to the log."""
        self._slow: dict[int, SlowRank] = {}
        """Slow ranks already reported."""
        self._note = ""
        """Text shown in place of the run's line."""
        self._live = Live(
            console=console,
            get_renderable=self._view,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal and self._detail >= 0:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    @property
    def _brief(self) -> bool:
        """Whether only the changing line is shown, without a line for each epoch."""
        return self._detail < 0 or (self._detail == 0 and self._console.is_terminal)

    def _view(self) -> RenderableType:
        lines = [self._note or run_line(self._spec, self._run, self._last, now())]
        lines += rank_lines(self._spec, self._run) if self._detail > 0 else []
        parts: list[RenderableType] = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
        return Group(*([self._above(self._run.time_left(self._spec.epochs))] if self._above else []), *parts)

    def say(self, line: str, style: str | None = None, *, on: Console | None = None) -> None:
        """Print and log one line. `on`: another console, for the last lines; the changing line ends before them."""
        if on:
            self._live.stop()
        (on or self._console).print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        if line not in self._traced:
            self._write(line)

    def log(self, line: str, style: str | None = None, *, brief: bool = False) -> None:
        """Log one line; also print it, in a terminal cut to the width, unless the display is brief. `brief`: print it
        there too, except in a sweep, which prints a line at the end of each run."""
        if not self._brief or (brief and self._detail >= 0 and self._above is None):
            shown = cut(line) if self._console.is_terminal else line
            self._console.print(shown, style=style, markup=False, highlight=False, soft_wrap=True)
        self._write(line)

    def analysing(self, records: int) -> None:
        """Show that training is over and `records` are being analysed, if there are many: few take no noticeable
        time."""
        if records >= MANY:
            self._note = f"analysing {records:,} records ..."
            self.log(self._note)

    def _tell_slow(self) -> None:
        """Report ranks that became slow, and slow ranks that have recovered."""
        for place, slow in enumerate(self._run.slow.ranks):
            if self._slow.get(place) != slow:
                self._slow[place] = slow
                line = sentence(row(slow, self._run.first or 0.0))
                if slow.cause == HOST and self._detail < 1:
                    self._write(line)  # what a run loses to other programs is said once, at its end
                else:
                    self.log(line, style="yellow", brief=slow.cause != HOST)

    def _write(self, text: str) -> None:
        self._log.write(f"{text}\n")
        self._log.flush()

    def update(self, record: Record) -> None:
        """Show a record."""
        spec, run = self._spec, self._run
        for epoch in run.add(record):
            if epoch.evaluated:
                self.log(epoch_line(spec, run, epoch, self._last))
            self._last = epoch
            if self._live.is_started:
                self._live.refresh()  # a short run has few other moments
        if self._detail > 1 and (line := record_line(record, run, every=self._detail > 2)):
            self.log(line)
        self._tell_slow()
        match record:
            case Ready():
                self._ready.add(record.rank)
                if len(self._ready) == self._first:
                    self.log(ready_line(spec, run), brief=True)
            case Failed():
                self._failed.setdefault(record.rank, record)
            case Joined():
                what = "is back" if record.rank in self._ready else "has joined"
                self._ready.add(record.rank)
                self.say(f"rank {record.rank} {what} {run.since(record.at):.1f} s after launch", style="green")
            case Drop():
                self.say(lost_line(spec, run, record), style="red")
                if record.rank in self._failed:
                    traceback = self._failed[record.rank].traceback.rstrip()
                    self._traced.add(traceback)  # which the run may end with later
                    self._write(traceback)  # too long for the eye
