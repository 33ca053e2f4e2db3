"""From the runs of a cell to its reference: which values it keeps, and how it sets margins, target and bands. Reads the
records of the first seed; writes nothing.

Refuses runs that make no reference: too few seeds, unfinished runs, slowed devices or scripted faults, outlying seeds
without a reason, a source tree with uncommitted changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from statistics import median
from typing import Any

import numpy as np
from pydantic import JsonValue

from bench.base import number_format
from bench.results.cells import Cell
from bench.results.runfolder import CONFIG, Run
from bench.results.schema import Metrics
from bench.validate.baselines.fingerprint import Fingerprint, cell_config, differences
from bench.validate.baselines.reference import MIN_SEEDS, Reference, sealed, twins
from bench.validate.checks import evaluation, rate, speed
from bench.validate.evidence.consistency import legible
from bench.validate.records.reading import records
from bench.validate.statistics.losses import first_loss, loss_metrics
from bench.validate.statistics.significance import DEVIATIONS, Moments
from bench.validate.statistics.target_crossing import samples_to
from bench.validate.verdicts.next_runs import rerun

QUALITY_FLOOR: dict[str, float] = {"accuracy": 0.005}
"""Name of a metric -> the smallest margin that matters in practice, in the metric's unit."""
RELATIVE_FLOOR = 0.005
"""The same for other metrics, as a fraction of the baseline's mean."""
SAMPLES_FLOOR = math.log(1.10)
"""Floor of the margin on samples to the target: a tenth more."""
SLOWER = 10.0
"""Default margin on speed, per cent: how much longer the same samples may take."""
CURVE_FLOOR = 0.05
"""Floor of a band's margin, as a fraction of the curve's median."""
BELOW = 2.0
"""Standard deviations from the median of the seeds to the target: 98 of 100 seeds reach it."""
FAR = 5.0
"""Robust standard deviations from the median beyond which a seed needs an explanation."""
QUALITY_DAYS, TIME_DAYS = 180, 60


def propose(
    cell: Cell, today: date, *, slower: float | None = None, dirty: bool = False, because: str | None = None
) -> Reference:
    """Make the reference from a cell's runs. With `slower` (per cent that a cell may be slower) it also keeps their
    speeds. Raises ValueError that names the cell and the obstacle."""
    runs = _sound(cell, dirty)
    diverged = sorted({run.metrics.seed for run in cell.runs if run.metrics.status == "diverged"})
    if diverged and not because:
        raise ValueError(f"{cell.name}: seeds {diverged} diverged: find out why, then give the reason with --because")
    metrics = [run.metrics for run in runs]
    about = metrics[0]
    quality = _quality(metrics)
    target = _target(metrics, quality)
    compared = {"quality": quality} | loss_metrics(metrics, _floor(metrics)) | _samples(metrics, target["value"])
    if slower is not None:
        compared[speed.METRIC] = _time(cell.name, metrics, slower)
    far = _far(compared["quality"])
    if far and not because:
        raise ValueError(
            f"{cell.name}: seeds {far} lie far from the others: find out why, then give the reason with --because"
        )
    days = QUALITY_DAYS if slower is None else TIME_DAYS
    body: dict[str, JsonValue] = {
        **{name: getattr(about, name) for name in ("model", "data", "recipe", "mode", "engine", "world_size")},
        **{"epochs": about.epochs_planned, "batch_size": about.batch_size, "lr": about.lr},
        "metric": about.final.eval_metric,
        "config_hash": about.config_hash,
        "config": cell_config(runs[0].config) | ({"depth": about.depth} if about.depth else {}),
        "metrics": compared,
        "diverged": [*diverged],
        "target": target,
        "curves": _curves(metrics),
        **_recorded(runs),
        "first_losses": {str(m.seed): loss for m in metrics if (loss := first_loss(m)) is not None},
        "params_sha256": _digests(metrics),
        "environment": Fingerprint.of(about).model_dump(mode="json"),
        "git": [m.git for k, m in enumerate(metrics) if m.git not in [other.git for other in metrics[:k]]],
        "created": today.isoformat(),
        "expires": (today + timedelta(days=days)).isoformat(),
        "supersedes": None,
        "because": because,
    }
    return sealed(body)


def _sound(cell: Cell, dirty: bool) -> list[Run]:
    """Return one finished run of every seed that did not diverge."""
    name = cell.name
    if any(run.metrics.status not in ("ok", "diverged") for run in cell.runs):
        raise ValueError(f"{name}: not every run finished ({cell.status}); train them again: {rerun(cell)}")
    for run in cell.runs:
        legible(run)
        if not (run.path / CONFIG).is_file():
            raise ValueError(f"{name}: {run.path} has no config.json, which says how it was trained; run it again")
    seeds = [run.metrics.seed for run in cell.runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{name}: a seed is there twice: {seeds}")
    if wrong := twins((m.seed, m.params_sha256) for m in cell.ok if m.params_sha256):
        raise ValueError(f"{name}: {wrong}")
    if len(cell.ok) < MIN_SEEDS:
        few = f"{len(cell.ok)} seeds, a baseline needs {MIN_SEEDS}"
        raise ValueError(f"{name}: {few}, and 20 to be more than provisional")
    if any(m.emulated_speeds or m.scripted_faults or m.faults or m.resumed or m.begun_without for m in cell.ok):
        raise ValueError(
            f"{name}: trained with slowed devices, with faults or from a checkpoint, so it cannot be a baseline"
        )
    if any(m.final.eval is None for m in cell.ok):
        raise ValueError(f"{name}: a run has no {cell.about.final.eval_metric}")
    required = [Fingerprint.of(m).required for m in cell.ok]
    for field, first, other in (field for run in required for field in differences(required[0], run)):
        raise ValueError(f"{name}: {field} differs between the seeds: {first} and {other}")
    if not dirty and any(m.git.get("dirty") for m in cell.ok):
        raise ValueError(
            f"{name}: trained from a source tree with uncommitted changes, which a commit does not mend afterwards: say "
            f"--dirty, or commit and train again: {rerun(cell)}"
        )
    if not dirty and not all(m.git.get("sha") or m.git.get("version") for m in cell.ok):
        raise ValueError(f"{name}: no commit of its source is recorded (git was missing); pass --dirty")
    return [run for run in cell.runs if run.metrics.status == "ok"]


def _values(pairs: Iterable[tuple[Metrics, float | None]]) -> list[JsonValue]:
    return [{"seed": m.seed, "value": value, "run_id": m.run_id} for m, value in pairs if value is not None]


def _quality(metrics: Sequence[Metrics]) -> dict[str, Any]:
    final = metrics[0].final
    values = _evals(metrics)
    resolution = _resolution(row.eval for m in metrics for row in m.epochs)
    spread = _spread(values, resolution)
    floor = _floor(metrics)
    return {
        "unit": "fraction" if _absolute(final.eval_metric, values) else final.eval_metric,
        "higher_is_better": final.higher_is_better,
        "scale": "linear",
        **_margin(floor, spread),
        "resolution": resolution,
        "values": _values((m, m.final.eval) for m in metrics),
    }


def _floor(metrics: Sequence[Metrics]) -> float:
    """Return the smallest change of the metric that matters in practice, in its unit."""
    name, values = metrics[0].final.eval_metric, _evals(metrics)
    relative = RELATIVE_FLOOR * abs(float(np.mean(values)))
    return QUALITY_FLOOR[name] if _absolute(name, values) else relative


def _absolute(name: str, values: Sequence[float]) -> bool:
    return name in QUALITY_FLOOR and number_format.is_fraction(name, values)


def _evals(metrics: Sequence[Metrics]) -> list[float]:
    return [float(m.final.eval) for m in metrics if m.final.eval is not None]


def _spread(values: Sequence[float], resolution: float) -> float:
    """Return the standard deviation, at least that of rounding to `resolution`."""
    return max(float(Moments.of(values).sd), resolution / math.sqrt(12))


def _margin(floor: float, spread: float) -> dict[str, Any]:
    if floor >= DEVIATIONS * spread:
        return {"margin": floor, "margin_why": f"the floor, over {DEVIATIONS:g} sd = {DEVIATIONS * spread:.4g}"}
    return {"margin": DEVIATIONS * spread, "margin_why": f"{DEVIATIONS:g} sd, over the floor of {floor:.4g}"}


def _resolution(evaluations: Iterable[float | None]) -> float:
    """Return the smallest difference between evaluations: one sample, for an accuracy. If all are equal, 1e-6 of the
    value, which may be small: a squared error of 1e-7."""
    known = sorted({value for value in evaluations if value is not None})
    least = 1e-6 * (max(map(abs, known), default=0.0) or 1.0)
    steps = [b - a for a, b in itertools.pairwise(known) if b - a > least]
    return min(steps, default=least)


def _target(metrics: Sequence[Metrics], quality: Mapping[str, Any]) -> dict[str, Any]:
    """Return the target that 98 of 100 seeds reach: their median, two standard deviations towards the worse."""
    values = _evals(metrics)
    spread = _spread(values, quality["resolution"])
    sign = 1.0 if quality["higher_is_better"] else -1.0
    return {
        "value": median(values) - sign * BELOW * spread,
        "why": f"median {number_format.metric(median(values))}, {BELOW:g} sd ({spread:.4g}) towards the worse",
    }


def _samples(metrics: Sequence[Metrics], target: float) -> dict[str, Any]:
    """Return the samples to the recipe's target, where curves are steep, if every seed reaches it; else to `target`.
    Empty if fewer than two seeds reach that."""
    steep = metrics[0].target.value
    if steep is not None and all(samples_to(m, steep) is not None for m in metrics):
        target = steep
    reached = [(m, samples_to(m, target)) for m in metrics]
    known = [value for _, value in reached if value is not None and value > 0]
    if len(known) < 2:
        return {}
    epoch = max(m.samples / max(len(m.epochs), 1) for m in metrics)
    resolution = epoch / float(np.mean(known))
    spread = _spread(np.log(known).tolist(), resolution)
    metric = {
        "unit": "samples",
        "higher_is_better": False,
        "scale": "log",
        **_margin(SAMPLES_FLOOR, spread),
        "resolution": resolution,
        "target": target,
        "values": _values(reached),
        "missed": [m.seed for m, value in reached if value is None],
    }
    return {"samples_to_target": metric}


def _time(name: str, metrics: Sequence[Metrics], slower: float) -> dict[str, Any]:
    """Return the metric of speeds. Its margin is `slower`, whatever the noise: noise makes verdicts inconclusive, not
    lenient."""
    known = [m.throughput.samples_per_s for m in metrics if m.throughput.samples_per_s]
    if not 0 < slower < math.inf:
        raise ValueError(f"{slower:g} % slower is no margin: give more than 0")
    if len(known) < len(metrics):
        raise ValueError(f"{name}: a run has no speed (timing=off measures none): leave out --time")
    if busy := [m.seed for m in metrics if speed.disturbed(m)]:
        raise ValueError(
            f"{name}: other programs used the cores during seeds {busy}, so their speeds do not count; train these again "
            "(force=true) on a quiet machine, or leave out --time"
        )
    machines = [Fingerprint.of(m).machine for m in metrics]
    if unknown := [field for field in ("cpu", "cores", "torch") if not machines[0].get(field)]:
        raise ValueError(f"{name}: its runs did not record {', '.join(unknown)} of their machine: leave out --time")
    for field, first, other in (field for machine in machines for field in differences(machines[0], machine)):
        raise ValueError(f"{name}: speeds of two machines: {field} {first} and {other}")
    return {
        "unit": "samples per second",
        "higher_is_better": True,
        "scale": "log",
        "margin": math.log1p(slower / 100),
        "margin_why": f"the same samples may take {slower:g} % longer",
        "resolution": 1e-3,
        "values": _values((m, m.throughput.samples_per_s) for m in metrics),
    }


def _curves(metrics: Sequence[Metrics]) -> dict[str, Any]:
    """Return the bands of training loss and evaluation by epoch, for the epochs that all seeds have."""
    higher = metrics[0].final.higher_is_better
    curves = {}
    for name, better in (("train_loss", False), ("eval", higher)):
        rows = [[getattr(row, name) for row in m.epochs] for m in metrics]
        length = min(len(row) for row in rows)
        if not length or any(value is None for row in rows for value in row[:length]):
            continue
        table = np.array([row[:length] for row in rows], np.float64)
        quantiles = np.quantile(table, [0.1, 0.5, 0.9], axis=0)
        margin = np.maximum(CURVE_FLOOR * np.abs(quantiles[1]), DEVIATIONS * table.std(axis=0, ddof=1))
        samples = np.median([[row.samples for row in m.epochs[:length]] for m in metrics], axis=0)
        band = dict(zip(("q10", "q50", "q90", "margin"), [*quantiles.tolist(), margin.tolist()], strict=True))
        curves[name] = {"higher_is_better": better, "samples": [round(value) for value in samples], **band}
    return curves


def _recorded(runs: Sequence[Run]) -> dict[str, JsonValue]:
    """Return the learning rates and data sets that the first seed recorded; {} if it recorded none."""
    known = records(runs[0])
    if known is None or not known.ready or any(event.content is None for event in known.evaluated):
        return {}
    samples, content = evaluation.evaluated(known).get(0, (0, 0.0))
    sets: dict[str, JsonValue] = {"training": known.ready[0].samples, "evaluated": samples, "content": content}
    if (data := known.ready[0].data) is not None:
        sets |= {"training_hashes": data.training.content, "test_hashes": data.test.content, "shared": data.shared}
    rates: JsonValue = [list(point) for point in rate.points(runs[0].metrics, known)]
    return {"rates": rates, "sets": sets} if samples else {"rates": rates}


def _digests(metrics: Sequence[Metrics]) -> dict[str, JsonValue]:
    """Return seed -> digest of the final parameters, only for the machine of the first seed: another may give other
    bits, and the reference names one machine."""
    machine = Fingerprint.of(metrics[0]).machine
    here = [m for m in metrics if Fingerprint.of(m).machine == machine]
    return {str(m.seed): m.params_sha256 for m in here if m.params_sha256}


def _far(quality: Mapping[str, Any]) -> list[int]:
    """Return the seeds that lie further than `FAR` robust deviations from the median; a deviation is at least the
    resolution."""
    values = [entry["value"] for entry in quality["values"]]
    middle = median(values)
    deviation = 1.4826 * median(abs(value - middle) for value in values)
    limit = FAR * max(deviation, quality["resolution"])
    return [entry["seed"] for entry in quality["values"] if abs(entry["value"] - middle) > limit]
