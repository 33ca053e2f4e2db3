"""What a person sees of a run while it lasts: a line for each epoch, and in a terminal a bar that moves between them.

The figures are those of `bench.results.live`; here they become lines. Knows nothing of folders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from bench.base import figures
from bench.config.spec import RunSpec
from bench.results.live.run import RunFigures
from ddp.core.commands import Drop
from ddp.core.events import Failed, Progress, Ready
from ddp.core.summary import EpochFigures
from ddp.process.codec import Record

MANY = 50_000
"""Records that take longer to analyse than a moment: a second or so."""


def ready_line(spec: RunSpec, run: RunFigures) -> str:
    """Return what is known when all ranks are ready."""
    first = run.ready[0]
    devices = "/".join(sorted({event.device for event in run.ready}))
    ranks = f"{spec.world_size} rank{'s' * (spec.world_size > 1)}"
    through = "" if first.transport == "none" else f", averaging through {first.transport}"
    return f"{ranks} on {devices}{through}; {first.parameters:,} parameters, {first.samples:,} samples per epoch"


def lost_line(spec: RunSpec, run: RunFigures, drop: Drop) -> str:
    """Return which rank the run goes on without, since when and why."""
    left = [str(rank) for rank in range(spec.world_size) if rank not in run.lost]
    others = f"rank{'s' * (len(left) > 1)} {', '.join(left)}"
    since = f"{run.since(run.ranks[drop.rank].lost or 0.0):.1f} s after launch"
    return f"rank {drop.rank} is lost {since}: {drop.reason}; going on with {others}"


def epoch_line(spec: RunSpec, run: RunFigures, epoch: EpochFigures) -> str:
    """Return the figures of an epoch that was evaluated."""
    width = len(str(spec.epochs))
    line = (
        f"epoch {epoch.epoch + 1:>{width}}/{spec.epochs}  loss {_metric(epoch.loss)}  "
        f"{spec.metric} {_metric(epoch.eval)}  {run.rate or 0.0:,.0f} samples/s"
    )
    return f"{line}  {schedule(spec, run)}".rstrip()


def _metric(value: float | None) -> str:
    return figures.metric(math.nan if value is None else value)  # for the eye, which knows this word


def schedule(spec: RunSpec, run: RunFigures) -> str:
    """Return anchor and counts, where a window is more than a step."""
    if run.plan is None or run.plan.in_step or spec.world_size == 1:
        return ""
    return f"anchor {run.plan.anchor}, steps {'/'.join(map(str, run.plan.counts))}"


class ProgressDisplay:
    """Shows a run on `console` and writes the same lines to `log`. A context manager."""

    def __init__(self, spec: RunSpec, console: Console, log: TextIO, before: Iterable[Record] = ()) -> None:
        """Show `spec`. `before`: that the run was launched, and what it goes on from."""
        self._run = RunFigures(spec.epochs)
        for record in before:
            self._run.add(record)
        self._spec, self._console, self._log = spec, console, log
        self._ready: set[int] = set()
        self._failed: dict[int, Failed] = {}
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

    def __enter__(self) -> ProgressDisplay:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def say(self, line: str, style: str | None = None, *, on: Console | None = None) -> None:
        """Print and log one line; the last ones go to another console, and the bar ends before them."""
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

    def update(self, record: Record) -> None:
        """Show what a record says."""
        spec, run = self._spec, self._run
        for epoch in run.add(record):
            if epoch.evaluated:
                self.say(epoch_line(spec, run, epoch))
        match record:
            case Ready():
                self._ready.add(record.rank)
                if len(self._ready) == spec.world_size:
                    self.say(ready_line(spec, run))
            case Failed():
                self._failed.setdefault(record.rank, record)
            case Drop():
                self.say(lost_line(spec, run, record), style="red")
                if record.rank in self._failed:
                    traceback = self._failed[record.rank].traceback.rstrip()
                    self._traced.add(traceback)  # which the run may end with later
                    self._write(traceback)  # too long for the eye
            case Progress():
                facts = f"{run.rate or 0.0:,.0f} samples/s  {schedule(spec, run)}"
                total = spec.epochs * run.epoch_samples
                self._bars.update(self._bar, completed=run.samples, total=total, facts=facts)
