"""Cells compared with the solo reference of their workload: the figures that several sections share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from bench.base.environment import SHARED_GPU
from bench.base.number_format import is_fraction
from bench.report.measures.timing import Timing
from bench.results.cells import Cell, Sample, links_of, measured, solo_of
from bench.results.schema import Metrics
from bench.validate.baselines.fingerprint import one_machine

DEVICES = {"cpu": "CPU cores", "cuda": "GPUs"}


@dataclass(frozen=True)
class Rival:
    """A cell and its solo reference."""

    cell: Cell
    solo: Cell | None

    @property
    def behind(self) -> float | None:
        """How much worse the mean final metric is than solo's, in units of the metric; negative: better."""
        if self.solo is None or self.cell.eval.mean is None or self.solo.eval.mean is None:
            return None
        difference = self.solo.eval.mean - self.cell.eval.mean
        return difference if self.cell.about.final.higher_is_better else -difference

    @property
    def speedup(self) -> float | None:
        """Samples per second over solo's on one machine: geometric means of undisturbed runs, as of `Option.speed`."""
        if self.solo is None or not self.one_clock or self.elsewhere:
            return None
        sides = [[rate for rate in measured(Timing.of(cell).speeds) if rate > 0] for cell in (self.cell, self.solo)]
        return geometric_mean(sides[0]) / geometric_mean(sides[1]) if all(sides) else None

    @property
    def one_clock(self) -> bool:
        """Whether its seconds and solo's are both real or both simulated."""
        return self.solo is not None and self.solo.about.source == self.cell.about.source

    @property
    def elsewhere(self) -> str:
        """What its runs were timed on, if not on solo's kind of device and machine, in words; empty: on these."""
        sides = [Timing.of(side).runs for side in (self.cell, self.solo) if side is not None]
        mine, *others = map(_kinds, sides)
        if mine and others and others[0] not in ("", mine):
            return f"{mine}, where one device's are of {others[0]}"
        return "" if one_machine(run for side in sides for run in side) else "another machine than one device's"

    @property
    def distorted(self) -> bool:
        """Whether its speed says nothing about scaling: its `distortions` or solo's, lost ranks, another machine or kind
        of device than solo's."""
        altered = any(distortions(side) for side in (self.cell, self.solo) if side is not None)
        return bool(altered or self.cell.bereft or self.elsewhere)

    @property
    def efficiency(self) -> Sample:
        """Share of the sum-of-speeds bound, measured in the same runs."""
        return self.cell.sample(lambda m: m.throughput.efficiency)

    @property
    def steady(self) -> Sample:
        """The same share at steady state, over the runs that reached it."""
        return self.cell.sample(lambda m: m.throughput.steady_efficiency)

    @property
    def ideal(self) -> float:
        """Speed-up over solo without any loss: the sum of the ranks' relative speeds over solo's relative speed."""
        return _devices(self.cell) / (1.0 if self.solo is None else _devices(self.solo))


def distortions(cell: Cell) -> tuple[str, ...]:
    """Return, in words, why a cell's times do not carry over to real devices, one for each rank; () if they do."""
    about = cell.about
    known = {
        "simulated devices": about.source is not None,
        "emulated devices": about.emulated_speeds,
        "emulated links": links_of(cell.runs[0]),
        "runs with faults made on purpose": about.scripted_faults,
        "ranks that share a GPU": any(shares_gpu(run.metrics) for run in cell.runs),
    }
    return tuple(text for text, there in known.items() if there)


def shares_gpu(m: Metrics) -> bool:
    """Return whether ranks of a run had one GPU among them. A launcher may show each rank one GPU, and call it the first:
    of such runs only a warning tells."""
    gpus = [device for device in m.devices if device.startswith("cuda")]
    alone = m.launcher is None and not m.env.get("launcher")
    return (alone and len(set(gpus)) < len(gpus)) or any(text.endswith(SHARED_GPU) for text in m.warnings)


def _kinds(runs: Iterable[Metrics]) -> str:
    """Return the kinds of device that the ranks of some runs had, in words; empty: no rank had come so far."""
    kinds = {device.partition(":")[0] for m in runs for device in m.devices}
    return " and ".join(DEVICES.get(kind, kind) for kind in sorted(kinds))


def _devices(cell: Cell) -> float:
    """Return the number of full-speed devices that the cell's ranks equal."""
    return sum(cell.about.emulated_speeds) or float(cell.about.world_size)


DAGGER = "† A rank was lost: speeds and efficiency are those of a cohort that shrank (see *Faults*)."
ELSEWHERE = "No speed-up is shown where runs were timed on another machine or kind of device than solo's."
TOGETHER = "Train one device on the machine and the kind of device (`cluster.device`) of the others."
"""Remedy for `ELSEWHERE`."""


def legend(shown: Sequence[Rival]) -> str:
    """Return what explains the figures of the shown cells that lost a rank or ran elsewhere than solo."""
    texts = {
        DAGGER: any(rival.cell.bereft for rival in shown),
        ELSEWHERE: any(rival.elsewhere for rival in shown),
    }
    return " ".join(text for text, there in texts.items() if there)


def transports(shown: Sequence[Rival]) -> tuple[set[str | None], set[str | None]]:
    """Return the transports of our engines and those of PyTorch's, in cells of several ranks."""
    ranks = [rival.cell.about for rival in shown if rival.cell.about.world_size > 1]
    ours, theirs = (
        {m.transport for m in ranks if (m.backend or m.engine).startswith("torch_") is peer} for peer in (False, True)
    )
    return ours, theirs


def wires(shown: Sequence[Rival]) -> str:
    """Return a note that the effects of engine and transport cannot be separated, if no engine of ours ran on the
    transport of PyTorch's engines."""
    ours, theirs = transports(shown)
    if not ours or not (missing := sorted(filter(None, theirs - ours))):
        return ""
    return (
        f"PyTorch's engines communicate through {missing[0]}, and none of ours does here: these speeds do not tell engine "
        f"and transport apart. Cells with `cluster.transport={missing[0]}` do, as in `experiment=shootout_gloo`."
    )


def rivals(cells: list[Cell]) -> list[Rival]:
    """Return the cells of one workload, each with solo as its reference."""
    solo = solo_of(cells)
    return [Rival(cell, solo) for cell in cells]


def mean_share(metrics: Metrics, category: str) -> float | None:
    """Return the mean fraction of the ranks' time that went into a category of the breakdown; None without a breakdown
    or timing."""
    ranks = metrics.breakdown if metrics.timing else []
    return sum(getattr(rank, category) for rank in ranks) / len(ranks) if ranks else None


def in_points(*cells: Cell | None) -> bool:
    """Return whether differences of the final metric of these cells are given in percentage points."""
    known = [cell for cell in cells if cell is not None]
    values = measured(m.final.eval for cell in known for m in cell.one_each)
    return all(is_fraction(cell.about.final.eval_metric, values) for cell in known)


def gap(behind: float | None, metric: str, higher_is_better: bool = True, points: bool | None = None) -> str:
    """Format the signed gap to solo: the metric less solo's. Without `higher_is_better`, `+` always means better.
    What rounds to nothing is +0.00, never -0.00. `points`: as of `in_points`; None: the metric's name decides."""
    if behind is None:
        return "–"
    value = (-behind if higher_is_better else behind) + 0.0
    points = is_fraction(metric, [abs(value)]) if points is None else points
    return f"{round(100 * value, 2) + 0.0:+.2f} pt" if points else f"{value:+.4g}"
