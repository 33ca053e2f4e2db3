"""What several runs show together: repeated runs of a cell, and the error of predictions of these and other runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any

from bench.predict.calibration import Calibration
from bench.predict.play import NOMINAL, Assumption, PlayedCell, play
from bench.predict.predicted_cell import PredictedCell, cores_of_run, shared_cores, shares, step_s_of
from bench.predict.spec import PER_RANK, policy_settings, predicted_spec, records_of, words_of
from bench.results.analysis.stream import sort
from bench.results.analysis.training import samples_per_s, train_seconds
from bench.results.analyze import analyze
from bench.results.runfolder import flat, group_of
from bench.results.schema import Metrics

PLAYS = 3
"""Plays of a run's own cell."""
SHARED = ("depth", "recipe", "train", "training", "data", "code", "loader", "checkpoint", "audit", "profile")
"""Keys of a configuration in which runs must agree to be predicted from together; with one policy also `OF_POLICY`."""
OF_POLICY = ("policy", "averaging")
FREE = ("dir", "source", *PER_RANK)
"""Settings below these keys that may differ: where a task lies, and what has an entry for each rank."""


def own_cell(calibration: Calibration) -> PredictedCell:
    """Return the cell of the calibrated run."""
    spec = calibration.spec
    return PredictedCell(spec.world_size, calibration.links, str(spec.policy), tuple(policy_settings(spec).items()))


def metrics_of(cell: PredictedCell, calibration: Calibration, played: PlayedCell, **about: Any) -> Metrics:
    """Return the result of a played cell, like that of a real run."""
    about = {"env": {}, "git": {}} | about
    spec = about.pop("spec", None) or predicted_spec(cell, calibration)
    return analyze(spec, records_of(played), status=played.status, launched=0.0, ended=played.end, **about)


def rate_of(cell: PredictedCell, calibration: Calibration, seed: int, assumed: Assumption = NOMINAL) -> float:
    """Return the samples per second of one play."""
    stream = sort(records_of(play(cell, calibration, seed, assumed)), 0.0)
    rate = samples_per_s(stream, cell.ranks, train_seconds(stream)) if calibration.spec.timing else None
    return rate or 0.0


@dataclass(frozen=True, eq=False)
class CalibratedRun:
    """A run: its costs, and its measured samples per second."""

    calibration: Calibration
    rate: float
    launched: float = 0.0
    """When it was launched, on the clock of its records; no other run of its seed has the same."""

    def error(self, cores: int | None = None) -> float:
        """Return the relative error of the prediction of the run itself."""
        return _played(self, cores, NOMINAL) / self.rate - 1

    def scale(self, cores: int | None, assumed: Assumption = NOMINAL) -> float:
        """Return the factor that corrects plays so that the run's own prediction is right."""
        return self.rate / _played(self, cores, assumed)


@cache
def _played(run: CalibratedRun, cores: int | None, assumed: Assumption) -> float:
    cell = replace(own_cell(run.calibration), cores=cores_of_run(cores, run.calibration))
    if assumed is not NOMINAL and not shares(cell):  # nothing is assumed of such a cell
        return _played(run, cores, NOMINAL)
    return fmean(rate_of(cell, run.calibration, seed, assumed) for seed in range(PLAYS))


@dataclass(frozen=True, eq=False)
class CalibratedCell:
    """Repeated runs of one cell, at least one, that differ only in their seeds."""

    runs: tuple[CalibratedRun, ...]

    @property
    def calibration(self) -> Calibration:
        """The calibration of the first run, which stands for all."""
        return self.runs[0].calibration

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]

    def error(self, cores: int | None = None) -> float:
        """Return the mean relative error of predictions of the runs themselves."""
        return fmean(run.error(cores) for run in self.runs)


def distinct(runs: Sequence[CalibratedRun]) -> list[CalibratedRun]:
    """Return the runs in order, each once, as copies of one run show no scatter."""
    every: dict[tuple[str, float], CalibratedRun] = {}
    for run in runs:
        every.setdefault((run.calibration.spec.run_id, run.launched), run)
    return list(every.values())


def grouped(runs: Sequence[CalibratedRun]) -> list[CalibratedCell]:
    """Group runs into cells, in order of their first runs."""
    groups: dict[tuple[object, ...], list[CalibratedRun]] = {}
    for run in runs:
        spec, alike = run.calibration.spec, _settings(run.calibration, SHARED)  # the hash leaves out some of these
        groups.setdefault((spec.mode, spec.config_hash, *alike.items()), []).append(run)
    return [CalibratedCell(tuple(group)) for group in groups.values()]


def apart(run: CalibratedRun, other: CalibratedRun) -> tuple[str, str, str] | None:
    """Return (name, value, other's value) of the first setting for which runs cannot be predicted from together; None:
    they differ at most in seed, policy, ranks, links and speeds."""
    same = run.calibration.spec.policy == other.calibration.spec.policy
    mine, theirs = (_settings(each.calibration, SHARED + OF_POLICY * same) for each in (run, other))
    names = dict.fromkeys([*mine, *theirs])
    rows = ((name, mine.get(name, "null"), theirs.get(name, "null")) for name in names)
    return next((row for row in rows if row[1] != row[2]), None)


def _settings(calibration: Calibration, keys: Sequence[str]) -> dict[str, str]:
    spec = calibration.spec
    fixed = {"model": spec.model, "backend": str(spec.backend), "device": calibration.device.partition(":")[0]}
    given = {key: spec.config[key] for key in keys if key in spec.config}
    own = {name: text for name, text in flat(given) if name.rpartition(".")[2] not in FREE}
    compare = group_of(spec.config, "cluster").get("compare") or 0
    cluster = {"step_s": f"{step_s_of(calibration):g}", "transport": calibration.transport, "compare": str(compare)}
    return fixed | own | {f"cluster.{name}": text for name, text in cluster.items()}


def shows_error(other: CalibratedCell, source: CalibratedCell) -> bool:
    """Return whether the runs of `other` show the error of predictions from `source`: they have other numbers of
    ranks."""
    there, own = other.calibration, source.calibration
    same = there.spec.policy == own.spec.policy and there.spec.model == own.spec.model
    return same and there.ranks != own.ranks and words_of(there.links) == words_of(own.links)


def off_by(source: CalibratedCell, others: Sequence[CalibratedCell], cores: int | None) -> tuple[float, bool]:
    """Return (relative error of predictions from `source` per doubling of ranks, whether runs with other numbers of
    ranks show it). Without such runs it is the error on the cell itself."""
    own, errors = source.calibration, [abs(source.error(cores))]
    for other in others:
        if shows_error(other, source):
            there = other.calibration
            shared = cores or shared_cores(there) or shared_cores(own)
            speeds = there.spec.speeds or (1.0,) * there.ranks
            cell = replace(own_cell(there), speeds=speeds, cores=cores_of_run(shared, there))
            guess = fmean(rate_of(cell, run.calibration, 0) * run.scale(shared) for run in source.runs)
            error = abs(math.log(guess / fmean(other.rates)))
            errors.append(math.expm1(error / abs(math.log2(there.ranks / own.ranks))))
    return max(errors), len(errors) > 1
