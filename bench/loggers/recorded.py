"""Reads the data that loggers log from a run folder: parameters and series of scalars. Knows no logger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench.loggers import RunInfo
from bench.results.live.curves import curves
from bench.results.live.history import RunHistory
from bench.results.live.tail import Tail
from bench.results.runfolder import CONFIG, LOG, METRICS, Run, find_runs, flat, read_object
from bench.results.schema import Epoch, Metrics, PlanRow

FILES = (CONFIG, METRICS, LOG, "timeline.json", "timeline.html", "timeline.csv", "report.md", "report.html")

SPEEDS = ("samples_per_s", "/step_ms")
"""Suffixes of the names of scalars that measure speed."""


class Scalar(NamedTuple):
    """One value of a series."""

    name: str
    value: float
    step: int
    """Of an epoch its number from 1, of a plan or a stretch of time its number from 0, of the loss within epochs the samples
    trained, of the final values 0."""
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

    @property
    def seconds(self) -> float:
        """Return the seconds from its beginning to its end. The total of a run that went on is since its last launch."""
        return max([self.metrics.time_s.total, *(scalar.seconds for scalar in self.scalars)])

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags to search a run by: the commit of its source, its cell in the matrix, its faults."""
        m = self.metrics
        lost = sorted({fault.rank for fault in m.faults if fault.rank is not None})
        known = {
            "git.commit": None if m.git.get("sha") is None else str(m.git["sha"]),
            "git.changed": str(m.git.get("dirty")).lower() if m.git.get("dirty") is not None else None,
            "mode": m.mode,
            "data": m.data,
            "recipe": m.recipe,
            "seed": str(m.seed),
            "world_size": str(m.world_size),
            "transport": m.transport,
            "faults": str(len(m.faults)),
            "faults.scripted": " ".join(m.scripted_faults),
            "ranks_lost": " ".join(map(str, lost)),
            "warnings": "; ".join(m.warnings),
        }
        return {name: value for name, value in known.items() if value}

    @property
    def files(self) -> list[Path]:
        """Return the existing files to store beside the series: configuration, result, timeline, report."""
        there = [self.folder / name for name in FILES]
        return [file for file in (*there, *self.images) if file.is_file()]

    @property
    def images(self) -> list[Path]:
        """Return the pictures of the run."""
        return sorted(self.folder.glob("*.png"))

    @property
    def settings(self) -> dict[str, float | str]:
        """Return the configuration with numbers as numbers."""
        return {name: _plain(value) for name, value in self.params.items()}


def begun(folder: Path, info: RunInfo, earlier: float = 0.0) -> Begun:
    """Read the run that is being made in `folder`. `earlier`: seconds from its first launch to the last one. Raises
    ValueError, OSError if there is nothing of it yet."""
    params = dict(flat(read_object(folder / CONFIG)))
    began = (folder / CONFIG).stat().st_mtime - earlier
    return Begun(folder, info.model, info.mode, info.run_id, info.config_hash, params, began)


def recorded(folder: Path) -> Recorded:
    """Read the run in `folder`. Raises ValueError, OSError if it cannot be read."""
    runs, problems = find_runs(folder)
    if not runs:
        raise ValueError(problems[0] if problems else f"{folder}: no run")
    run, m = runs[0], runs[0].metrics
    plans, about = m.elche.plans if m.elche else (), (m.final.eval_metric, m.time_s.startup)
    scalars = [
        *(each for before, row in pairwise([None, *m.epochs]) if row for each in learning(row, before, *about)),
        *(each for step, plan in enumerate(plans) for each in schedule(plan, step)),
        *_ranks(run),
    ]
    # Of a run that went on, what is timed since its first launch ends no later than the run.
    ended = max([m.time_s.total, *(scalar.seconds for scalar in scalars)])
    began = (folder / METRICS).stat().st_mtime - ended
    scalars += _final(m, ended)
    params = dict(flat(run.config))
    return Recorded(folder, m.model, m.mode, m.run_id, m.config_hash, params, began, m, measured(scalars, m.timing))


def measured(scalars: Iterable[Scalar], timing: bool) -> list[Scalar]:
    """Return the scalars without speeds, if the run was not timed."""
    return [scalar for scalar in scalars if timing or not scalar.name.endswith(SPEEDS)]


def learning(row: Epoch, before: Epoch | None, metric: str, startup: float) -> Iterator[Scalar]:
    """Yield what was learnt in an epoch; `startup`: seconds from launch to the first step."""
    samples, seconds = (before.samples, before.seconds) if before else (0, 0.0)
    values = {
        "train/loss": row.train_loss,
        "train/lr": row.lr,
        "train/samples": row.samples,
        "train/samples_per_s": (row.samples - samples) / (row.seconds - seconds) if row.seconds > seconds else None,
        f"eval/{metric}": row.eval,
        "eval/loss": row.eval_loss,
        **{f"scalars/{name}": value for name, value in row.scalars.items()},
    }
    return _scalars(values, row.epoch + 1, startup + row.seconds)


def schedule(plan: PlanRow, step: int) -> Iterator[Scalar]:
    """Yield anchor and counts of a plan, the `step`-th one."""
    counts = {f"rank{rank}/steps_per_window": count for rank, count in enumerate(plan.counts)}
    return _scalars({"schedule/anchor": plan.anchor, **counts}, step, plan.seconds)


def _scalars(values: Mapping[str, float | None], step: int, seconds: float) -> Iterator[Scalar]:
    return (Scalar(name, value, step, seconds) for name, value in values.items() if value is not None)


def _ranks(run: Run) -> Iterator[Scalar]:
    """Yield what each rank did over time, in stretches as the live page has them; of all ranks, the loss by samples."""
    tail = Tail(run.path, RunHistory)
    while tail.read():
        pass
    shown, samples = curves(tail.state), tail.state.run.epoch_samples
    for epoch, value, step in zip(
        shown["epoch"], shown["ranks"]["all"]["loss"], range(len(shown["epoch"])), strict=True
    ):
        seen = {} if epoch is None else {"train/loss_within_epochs": value}
        yield from _scalars(seen, round((epoch or 0.0) * samples), (step + 0.5) * shown["width_s"])
    for rank, lines in shown["ranks"].items():
        for name in ("samples_per_s", "share", "step_ms", "cpu", "rss_bytes") if rank != "all" else ():
            for step, value in enumerate(lines[name]):
                yield from _scalars({f"rank{rank}/{name}": value}, step, (step + 0.5) * shown["width_s"])


def _final(m: Metrics, ended: float) -> Iterator[Scalar]:
    """Yield where the run ended, so many seconds after its beginning."""
    values = {
        "final/train_loss": m.final.train_loss,
        f"final/{m.final.eval_metric}": m.final.eval,
        "final/samples_per_s": m.throughput.samples_per_s,
        "final/efficiency": m.throughput.efficiency,
        "final/seconds": m.time_s.total,
        "final/train_seconds": m.time_s.train,
        **{f"final/rank{rank}_samples_per_s": speed for rank, speed in enumerate(m.throughput.per_rank)},
    }
    return _scalars(values, 0, ended)


def _plain(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
