"""Runs grouped into cells (the seeds of one configuration), and cells into workloads. Reports and validation share
it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from bench.base.grouping import grouped
from bench.base.number_format import in_turn, plural
from bench.results.analysis.faults import missing
from bench.results.runfolder import Run, group_of
from bench.results.schema import Metrics
from bench.results.training_settings import LARGEST, digests, norm_limit, step_settings


def measured(values: Iterable[float | None]) -> list[float]:
    """Return the values that exist, are finite and are at most `LARGEST`."""
    return [value for value in values if value is not None and math.isfinite(value) and abs(value) <= LARGEST]


class Workload(NamedTuple):
    """What is trained, whatever the mode. Results are comparable only if all of it is equal."""

    model: str
    data: str
    recipe: str
    epochs: int
    batch_size: int
    lr: float
    depth: int | None = None
    """Layers with weights; None: the model's default."""
    metric: str = ""
    """Name of the evaluation metric."""
    max_grad_norm: float | None = None
    """Limit for the norm of a step's gradients; None: no limit."""
    step: str = ""
    """Settings of a step that are not the default; and the number of samples, if that is no whole number of epochs."""
    digests: tuple[tuple[str, str], ...] = ()
    """Digest of each part of the task that is the user's own, by name."""

    @staticmethod
    def of(run: Run) -> Workload:
        """Return the workload of a run."""
        m = run.metrics
        limits = norm_limit(run.config), step_settings(run.config, m.batch_size * m.world_size), digests(run.config)
        return Workload(
            m.model, m.data, m.recipe, m.epochs_planned, m.batch_size, m.lr, m.depth, m.final.eval_metric, *limits
        )

    @property
    def detail(self) -> str:
        """What distinguishes workloads of one model."""
        depth = f"depth {self.depth}, " if self.depth else ""
        return f"{depth}{self.data}, {self.recipe}, {self.course}"

    @property
    def course(self) -> str:
        """How long and with which settings it is trained."""
        limit = "" if self.max_grad_norm is None else f", gradients up to {self.max_grad_norm:g}"
        step = self.step and f", {self.step}"
        return f"{plural(self.epochs, 'epoch')}, batch {self.batch_size}, lr {self.lr:g}{limit}{step}"

    def differing(self, others: Iterable[Workload]) -> str:
        """Return, as text, what distinguishes it from other workloads of its model; empty: nothing."""
        words = {
            "depth": f"depth {self.depth}" if self.depth else "",
            "data": self.data,
            "recipe": self.recipe,
            "epochs": plural(self.epochs, "epoch"),
            "batch_size": f"batch {self.batch_size}",
            "lr": f"lr {self.lr:g}",
            "max_grad_norm": "" if self.max_grad_norm is None else f"gradients up to {self.max_grad_norm:g}",
            "step": self.step,
            "metric": self.metric,
        }
        beside = list(others)
        common = set(self.digests).intersection(*(w.digests for w in beside))
        words["digests"] = ", ".join(
            f"{what} {digest[:6]}" for what, digest in self.digests if (what, digest) not in common
        )
        apart = [text for name, text in words.items() if any(getattr(w, name) != getattr(self, name) for w in beside)]
        return ", ".join(filter(None, apart))

    @property
    def title(self) -> str:
        """A name for headings."""
        depth = f" of depth {self.depth}" if self.depth else ""
        return f"{self.model}{depth} on {self.data}, recipe {self.recipe}"


@dataclass(frozen=True)
class Sample:
    """Values over the seeds of a cell: mean and standard deviation (ddof 1; None below two values)."""

    n: int
    mean: float | None
    sd: float | None

    @staticmethod
    def of(values: Sequence[float | None]) -> Sample:
        """Return the sample of those values that `measured` keeps."""
        known = measured(values)
        return Sample(len(known), fmean(known) if known else None, stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True)
class Cell:
    """The runs of one configuration, by seed."""

    label: str
    """Mode, world size, emulated speeds and links, and scripted faults; unique within its workload."""
    workload: Workload
    runs: tuple[Run, ...]
    name: str
    """Model and label, and whatever else distinguishes it from every other cell."""

    @property
    def about(self) -> Metrics:
        """The metrics of one run, for fields that all runs share."""
        return self.runs[0].metrics

    @property
    def ok(self) -> list[Metrics]:
        """Metrics of all runs that finished, including repeated runs of a seed."""
        return [run.metrics for run in self.runs if run.metrics.status == "ok"]

    @property
    def counted(self) -> list[Run]:
        """One run for each seed, sorted by seed, however often it was trained: the first that finished, else the first
        that failed or diverged, else one that was interrupted."""
        ordered = sorted(self.runs, key=lambda run: ("ok", "failed", "killed").index(_kind(run)))
        by_seed: dict[int, Run] = {}
        for run in ordered:
            by_seed.setdefault(run.metrics.seed, run)
        return [by_seed[seed] for seed in sorted(by_seed)]

    @property
    def one_each(self) -> list[Metrics]:
        """Metrics of those of `counted` that finished. The figures of a cell are computed from these."""
        return [run.metrics for run in self.counted if run.metrics.status == "ok"]

    @property
    def timed(self) -> list[Metrics]:
        """Those of `one_each` whose speed was measured. Figures on time use these."""
        return [metrics for metrics in self.one_each if metrics.timing]

    def total(self, value: Callable[[Metrics], float | None]) -> float | None:
        """Return the mean of `value`, a sum over a whole run, over the seeds that finished and were not resumed: of the
        others only the last part was measured."""
        return Sample.of([value(metrics) for metrics in self.one_each if metrics.resumed is None]).mean

    @property
    def is_solo(self) -> bool:
        """Whether it is the reference: one rank, without an engine."""
        return self.about.engine == "solo"

    @property
    def bereft(self) -> list[Metrics]:
        """Metrics of the runs that finished without a rank that they had lost."""
        return [m for m in self.ok if missing(m.faults)]

    @property
    def marked(self) -> str:
        """The label, with a dagger if a finished run lost a rank: its figures are those of fewer ranks."""
        return f"{self.label} †" if self.bereft else self.label

    @property
    def status(self) -> str:
        """Number of runs by status, such as `3 ok, 1 failed`."""
        counts = Counter(run.metrics.status for run in self.runs)
        return ", ".join(
            f"{counts[status]} {status}" for status in ("ok", "diverged", "failed", "killed") if counts[status]
        )

    def sample(self, value: Callable[[Metrics], float | None]) -> Sample:
        """Return `value` over the seeds that finished."""
        return Sample.of([value(metrics) for metrics in self.one_each])

    @property
    def eval(self) -> Sample:
        """Final evaluation metric."""
        return self.sample(lambda m: m.final.eval)

    @property
    def speed(self) -> Sample:
        """Samples per second."""
        return self.sample(lambda m: m.throughput.samples_per_s)


def cells(runs: Sequence[Run]) -> list[Cell]:
    """Group `runs` into cells, sorted by workload, solo first, then by mode and world size."""
    groups: dict[tuple[Workload, str, int, str], list[Run]] = defaultdict(list)
    for run in runs:
        m = run.metrics
        groups[Workload.of(run), m.mode, m.world_size, m.config_hash].append(run)
    firsts = {key: group[0] for key, group in groups.items()}
    texts = {key: _label(run.metrics, links_of(run)) for key, run in firsts.items()}
    labels = Counter((key[0], text) for key, text in texts.items())
    transports = Counter((key[0], texts[key], run.metrics.transport) for key, run in firsts.items())
    alike: dict[str, set[Workload]] = defaultdict(set)
    for workload, *_ in groups:
        alike[workload.model].add(workload)
    listed = []
    for key, group in sorted(groups.items(), key=lambda item: _order(item[1][0])):
        label = texts[key]
        unique = labels[key[0], label] == 1
        ordered = tuple(sorted(group, key=lambda run: (run.metrics.seed, run.path)))
        if not unique and transports[key[0], label, group[0].metrics.transport] == 1:
            label, unique = f"{label} over {group[0].metrics.transport}", True
        label = label if unique else f"{label} #{key[3][:6]}"
        model = key[0].model
        detail = f" ({words})" if (words := key[0].differing(alike[model])) else ""
        listed.append(Cell(label, key[0], ordered, f"{model} {label}{detail}"))
    return listed


def apart(every: Sequence[Cell], own: Collection[Path]) -> tuple[list[Cell], list[Cell]]:
    """Divide the cells into those with runs in the folders `own`, with their earlier finished runs, and all others."""
    folders = {folder.resolve() for folder in own}
    mine: list[Cell] = []
    others: list[Cell] = []
    for cell in every:
        ours = {run.path for run in cell.runs if run.path.resolve() in folders}
        kept = {run.path for run in cell.runs if ours and (run.path in ours or run.metrics.status == "ok")}
        for place, wanted in ((mine, True), (others, False)):
            runs = tuple(run for run in cell.runs if (run.path in kept) is wanted)
            place += [replace(cell, runs=runs)] if runs else []
    return mine, others


def _kind(run: Run) -> str:
    """Return `ok`, `killed` (interrupted), or `failed` (failed or diverged)."""
    status = run.metrics.status
    return status if status in ("ok", "killed") else "failed"


def _label(m: Metrics, links: str) -> str:
    """Return the label of a cell; `links`: as of `links_of`."""
    source = f" ({m.source})" if m.source else ""
    if m.engine == "solo" and not m.emulated_speeds:
        return f"{m.mode}{source}"
    speeds = f" at speeds {in_turn(m.emulated_speeds)}" if m.emulated_speeds else ""
    script = f" with {', '.join(m.scripted_faults)}" if m.scripted_faults else ""
    return f"{m.mode} ×{m.world_size}{speeds}{script}{links}{source}"


def links_of(run: Run) -> str:
    """Return the emulated links of a run as part of a label; empty: none."""
    words = group_of(run.config, "cluster").get("links")
    return f" over {', '.join(map(str, words))}" if isinstance(words, list) and words else ""


def _order(run: Run) -> tuple[object, ...]:
    m, workload = run.metrics, Workload.of(run)
    distorted = (bool(m.emulated_speeds), m.scripted_faults)
    workload = workload._replace(depth=m.depth or 0, max_grad_norm=workload.max_grad_norm or 0.0)
    return (*workload, m.engine != "solo", m.world_size, *distorted, m.mode, m.config_hash)


def by_workload(cells: Sequence[Cell]) -> dict[Workload, list[Cell]]:
    """Return the cells by workload, in the order given."""
    groups = grouped((cell.workload, cell) for cell in cells)
    return dict(groups)


def solo_of(cells: Sequence[Cell]) -> Cell | None:
    """Return the reference among the cells of one workload: solo with a finished run, preferably in real time and at
    full speed; None if there is none."""
    candidates = [cell for cell in cells if cell.is_solo and cell.ok]
    return min(candidates, key=lambda cell: (bool(cell.about.source), bool(cell.about.emulated_speeds)), default=None)
