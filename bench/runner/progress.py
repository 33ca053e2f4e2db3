"""What a person sees of a run while it runs: a line for each epoch, and in a terminal a bar that moves between them.

`Scoreboard` folds records into lines and knows nothing of terminals; `Progress` shows them. What is shown live is for the
eye: results come from `bench.results.analyze`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bench.base import figures
from bench.runner.spec import RunSpec
from ddp.core.commands import Drop, Evaluate, Plan
from ddp.core.events import Evaluated, Failed, Lost, Progress, Ready
from ddp.process.codec import Record

MANY = 50_000
"""Records that take longer to analyse than a moment: a second or so."""


@dataclass
class EpochScore:
    """Sums of one epoch."""

    samples: int = 0
    loss: float = 0.0
    lr: float = 0.0
    parts: int = 1
    evaluated: int = 0
    eval_samples: int = 0
    metric: float = 0.0


@dataclass
class Scoreboard:
    """The run so far."""

    spec: RunSpec
    zero: float = 0.0
    """When the run was launched, or the first one that it goes on from; seconds on the clock of the records."""
    ready: list[Ready] = field(default_factory=list)
    epochs: defaultdict[int, EpochScore] = field(default_factory=lambda: defaultdict(EpochScore))
    samples: int = 0
    plan: Plan | None = None
    failed: dict[int, Failed | Lost] = field(default_factory=dict)
    """Rank -> its last words, or those on it."""
    lost: set[int] = field(default_factory=set)
    began: float = 0.0
    """When the last rank was ready."""
    now: float = 0.0

    def update(self, record: Record, at: float) -> str | None:
        """Take note of a record; a line where there is something to say."""
        self.now = at
        match record:
            case Ready():
                self.ready.append(record)
                self.began = at
                return self._ready_line() if len(self.ready) == self.spec.world_size else None
            case Progress():
                epoch = self.epochs[record.epoch]
                epoch.samples += record.samples
                epoch.loss += float("nan") if record.loss_sum is None else record.loss_sum
                epoch.lr = record.lr
                self.samples += record.samples
            case Plan():
                self.plan = record
            case Evaluate():
                self.epochs[record.epoch].parts = record.parts
            case Evaluated():
                return self._evaluated(record)
            case Failed() | Lost():
                self.failed.setdefault(record.rank, record)
            case Drop():
                return self._dropped(record)
        return None

    @property
    def total(self) -> int:
        """Samples of the whole run."""
        return self.spec.epochs * self.ready[0].samples if self.ready else 0

    @property
    def rate(self) -> float:
        """Samples per second so far, evaluation included."""
        return self.samples / (self.now - self.began) if self.samples and self.now > self.began else 0.0

    @property
    def schedule(self) -> str:
        """Anchor and counts, where a window is more than a step."""
        if self.plan is None or self.plan.in_step or self.spec.world_size == 1:
            return ""
        return f"anchor {self.plan.anchor}, steps {'/'.join(map(str, self.plan.counts))}"

    def _ready_line(self) -> str:
        first = self.ready[0]
        devices = "/".join(sorted({event.device for event in self.ready}))
        ranks = f"{self.spec.world_size} rank{'s' * (self.spec.world_size > 1)}"
        through = "" if first.transport == "none" else f", averaging through {first.transport}"
        return f"{ranks} on {devices}{through}; {first.parameters:,} parameters, {first.samples:,} samples per epoch"

    def _dropped(self, record: Drop) -> str:
        self.lost.add(record.rank)
        left = [str(rank) for rank in range(self.spec.world_size) if rank not in self.lost]
        others = f"rank{'s' * (len(left) > 1)} {', '.join(left)}"
        noticed = self.failed[record.rank].at if record.rank in self.failed else self.now
        since = f"{noticed - self.zero:.1f} s after launch"
        return f"rank {record.rank} is lost {since}: {record.reason}; going on with {others}"

    def _evaluated(self, record: Evaluated) -> str | None:
        epoch = self.epochs[record.epoch]
        epoch.evaluated += 1
        epoch.eval_samples += record.samples
        epoch.metric += math.nan if record.metric_sum is None else record.metric_sum
        if epoch.evaluated < epoch.parts:
            return None
        width = len(str(self.spec.epochs))
        loss, reached = epoch.loss / max(epoch.samples, 1), epoch.metric / max(epoch.eval_samples, 1)
        line = (
            f"epoch {record.epoch + 1:>{width}}/{self.spec.epochs}  loss {figures.metric(loss)}  "
            f"{self.spec.metric} {figures.metric(reached)}  {self.rate:,.0f} samples/s"
        )
        return f"{line}  {self.schedule}".rstrip()


class Monitor:
    """Shows a run on `console` and writes the same lines to `log`. A context manager.

    `zero`: when the run was launched, or the first one that it goes on from, seconds on the clock of the records."""

    def __init__(self, spec: RunSpec, console: Console, log: TextIO, zero: float) -> None:
        self._board = Scoreboard(spec, zero)
        self._console, self._log = console, log
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._traced: set[str] = set()
        """Tracebacks that the log has."""
        self._bar = self._bars.add_task(f"{spec.model} {spec.mode}", total=None, facts="starting")

    def __enter__(self) -> Monitor:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, line: str, style: str | None = None, *, on: Console | None = None) -> None:
        """One line for the eye and the log; the last ones go to another console, and the bar ends before them."""
        if on:
            self._bars.stop()
        (on or self._console).print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        if line not in self._traced:
            self._write(line)

    def analysing(self, records: int) -> None:
        """Say that training is over and so many records are looked at; few are done before anybody could read it."""
        if records >= MANY:
            self.say(f"analysing {records:,} records ...")
            self._bars.update(self._bar, description="analysing", facts="")

    def _write(self, text: str) -> None:
        self._log.write(f"{text}\n")
        self._log.flush()

    def update(self, record: Record, at: float) -> None:
        """Show what a record says."""
        board = self._board
        line = board.update(record, at)
        if line is not None:
            self.say(line, style="red" if isinstance(record, Drop) else None)
        if isinstance(record, Drop) and isinstance(failed := board.failed.get(record.rank), Failed):
            traceback = failed.traceback.rstrip()
            self._traced.add(traceback)  # which the run may end with later
            self._write(traceback)  # too long for the eye
        if isinstance(record, Progress):
            facts = f"{board.rate:,.0f} samples/s  {board.schedule}"
            self._bars.update(self._bar, completed=board.samples, total=board.total, facts=facts)
