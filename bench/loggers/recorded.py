"""What loggers log of a run folder: parameters and series of scalars. Knows no logger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.dashboard.lines import curves
from bench.dashboard.tail import Tail
from bench.dashboard.view import flat
from bench.runfolder import METRICS, Run, find_runs
from bench.schema import Metrics


class Scalar(NamedTuple):
    """One value of a series."""

    name: str
    value: float
    step: int
    """Of an epoch its number from 1, of a plan or a stretch of time its number from 0, of the final values 0."""
    seconds: float
    """Since launch, about."""


@dataclass(frozen=True)
class Recorded:
    """A finished run."""

    folder: Path
    metrics: Metrics
    params: dict[str, str]
    """The resolved configuration, dotted."""
    scalars: list[Scalar]
    began: float
    """Seconds since 1970, by the time of the result's file."""

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.metrics.model} {self.metrics.mode} {self.metrics.run_id}"


def recorded(folder: Path) -> Recorded:
    """The run in `folder`. Raises ValueError, OSError if it cannot be read."""
    runs, problems = find_runs(folder)
    if not runs:
        raise ValueError(problems[0] if problems else f"{folder}: no run")
    run = runs[0]
    ended = (folder / METRICS).stat().st_mtime
    scalars = [*_epochs(run.metrics), *_plans(run.metrics), *_ranks(run), *_final(run.metrics)]
    params = dict(flat(run.config))
    return Recorded(folder, run.metrics, params, scalars, ended - run.metrics.time_s.total)


def _epochs(m: Metrics) -> Iterator[Scalar]:
    """The curves of learning."""
    samples, seconds = 0, 0.0
    for row in m.epochs:
        at = m.time_s.startup + row.seconds
        speed = (row.samples - samples) / (row.seconds - seconds) if row.seconds > seconds else None
        samples, seconds = row.samples, row.seconds
        values = {
            "train/loss": row.train_loss,
            "train/lr": row.lr,
            "train/samples": row.samples,
            "train/samples_per_s": speed,
            f"eval/{m.final.eval_metric}": row.eval,
            "eval/loss": row.eval_loss,
            **{f"scalars/{name}": value for name, value in row.scalars.items()},
        }
        yield from (Scalar(name, value, row.epoch + 1, at) for name, value in values.items() if value is not None)


def _plans(m: Metrics) -> Iterator[Scalar]:
    """Anchor and counts, where there is a schedule."""
    for step, plan in enumerate(m.elche.plans if m.elche else ()):
        yield Scalar("schedule/anchor", plan.anchor, step, plan.seconds)
        for rank, count in enumerate(plan.counts):
            yield Scalar(f"rank{rank}/steps_per_window", count, step, plan.seconds)


def _ranks(run: Run) -> Iterator[Scalar]:
    """What each rank did over time, in stretches as the dashboard has them."""
    tail = Tail(run.path)
    while tail.read():
        pass
    shown = curves(tail.state)
    for rank, lines in shown["ranks"].items():
        for name in ("samples_per_s", "share", "step_ms", "cpu", "rss_bytes") if rank != "all" else ():
            for step, value in enumerate(lines[name]):
                if value is not None:
                    yield Scalar(f"rank{rank}/{name}", value, step, (step + 0.5) * shown["width_s"])


def _final(m: Metrics) -> Iterator[Scalar]:
    """Where the run ended."""
    values = {
        "train_loss": m.final.train_loss,
        m.final.eval_metric: m.final.eval,
        "samples_per_s": m.throughput.samples_per_s,
        "efficiency": m.throughput.efficiency,
        "seconds": m.time_s.total,
        "train_seconds": m.time_s.train,
        **{f"rank{rank}_samples_per_s": speed for rank, speed in enumerate(m.throughput.per_rank)},
    }
    yield from (
        Scalar(f"final/{name}", value, 0, m.time_s.total) for name, value in values.items() if value is not None
    )
