"""What loggers log of a run folder: parameters and series of scalars. Knows no logger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.dashboard.lines import curves
from bench.dashboard.tail import Tail
from bench.dashboard.view import flat
from bench.loggers.info import RunInfo
from bench.results.runfolder import CONFIG, METRICS, Run, find_runs, read_object
from bench.results.schema import Epoch, Metrics, PlanRow


class Scalar(NamedTuple):
    """One value of a series."""

    name: str
    value: float
    step: int
    """Of an epoch its number from 1, of a plan or a stretch of time its number from 0, of the final values 0."""
    seconds: float
    """Since launch; of an epoch about, for what is evaluated in between is left out."""


@dataclass(frozen=True)
class Begun:
    """A run, as far as it is known when it begins."""

    folder: Path
    """Where its files are now."""
    model: str
    mode: str
    run_id: str
    config_hash: str
    params: dict[str, str]
    """The resolved configuration, dotted."""
    began: float
    """Seconds since 1970, about."""

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.model} {self.mode} {self.run_id}"


@dataclass(frozen=True)
class Recorded(Begun):
    """A finished run."""

    metrics: Metrics
    scalars: list[Scalar]


def begun(folder: Path, said: RunInfo) -> Begun:
    """The run that is being made in `folder`. Raises ValueError, OSError if there is nothing of it yet."""
    params = dict(flat(read_object(folder / CONFIG)))
    began = (folder / CONFIG).stat().st_mtime
    return Begun(folder, said.model, said.mode, said.run_id, said.config_hash, params, began)


def recorded(folder: Path) -> Recorded:
    """The run in `folder`. Raises ValueError, OSError if it cannot be read."""
    runs, problems = find_runs(folder)
    if not runs:
        raise ValueError(problems[0] if problems else f"{folder}: no run")
    run, m = runs[0], runs[0].metrics
    began = (folder / METRICS).stat().st_mtime - m.time_s.total
    plans = m.elche.plans if m.elche else ()
    scalars = [
        *learning(m.epochs, m.final.eval_metric, m.time_s.startup),
        *schedule(plans),
        *_ranks(run),
        *_final(m),
    ]
    params = dict(flat(run.config))
    return Recorded(folder, m.model, m.mode, m.run_id, m.config_hash, params, began, m, scalars)


def learning(rows: Sequence[Epoch], metric: str, startup: float) -> Iterator[Scalar]:
    """The curves of learning; `startup`: seconds from launch to the first step."""
    samples, seconds = 0, 0.0
    for row in rows:
        at = startup + row.seconds
        speed = (row.samples - samples) / (row.seconds - seconds) if row.seconds > seconds else None
        samples, seconds = row.samples, row.seconds
        values = {
            "train/loss": row.train_loss,
            "train/lr": row.lr,
            "train/samples": row.samples,
            "train/samples_per_s": speed,
            f"eval/{metric}": row.eval,
            "eval/loss": row.eval_loss,
            **{f"scalars/{name}": value for name, value in row.scalars.items()},
        }
        yield from (Scalar(name, value, row.epoch + 1, at) for name, value in values.items() if value is not None)


def schedule(plans: Sequence[PlanRow]) -> Iterator[Scalar]:
    """Anchor and counts, where there is a schedule."""
    for step, plan in enumerate(plans):
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
