"""Predictions of cells: played several times, judged by the arithmetic of real runs, with intervals and what lies outside of
what was calibrated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

from scipy import stats

from bench.base import canonical
from bench.config.spec import RunSpec
from bench.predict.calibration import Calibration
from bench.predict.play import PlayedCell, PredictedCell, play, samples_of, speeds_of
from bench.results.analysis.explained import COMPUTE, explained
from bench.results.analysis.stream import RunRecords, sort
from bench.results.analyze import analyze
from bench.results.schema import Metrics
from ddp.engine.modes import mode_name
from ddp.process.codec import Record

LEVEL = 0.9
"""Of intervals."""
REPEATS = ((64, 5), (512, 3))
"""So many plays up to so many ranks; two beyond."""
FAR = 4
"""A prediction for so many times the ranks that were calibrated on is far away."""
NO_LIMIT = 0.05
"""Where no cause takes more than this part of the time, computing is the limit."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a cell. `low` and `high` are of samples per second, at level `LEVEL`."""

    title: str
    mode: str
    ranks: int
    links: str
    samples_per_s: float
    low: float
    high: float
    efficiency: float | None
    waiting: float
    """Of the ranks' wall time, fraction; so is `communicating`."""
    communicating: float
    bytes: int
    limit: str
    """The cause that takes most of the time beside computing."""
    beyond: tuple[str, ...]
    """What lies outside of what was calibrated; empty: nothing."""
    plays: int
    seconds: float
    """Predicted, from launch to end."""


def own_cell(calibration: Calibration) -> PredictedCell:
    """Return the cell that was calibrated on."""
    spec = calibration.spec
    settings = {key: value for key, value in (spec.config.get("policy") or {}).items() if key != "name"}
    links = None if calibration.links is None else calibration.links
    return PredictedCell(spec.world_size, links, str(spec.policy), tuple(settings.items()))


def predicted_spec(cell: PredictedCell, calibration: Calibration) -> RunSpec:
    """Return a cell as a run, for the analysis."""
    spec = calibration.spec
    config: dict[str, Any] = spec.config | {
        "audit": False,
        "world_size": cell.ranks,
        "policy": {"name": cell.policy} | dict(cell.settings),
        "cluster": spec.config["cluster"] | {"speeds": list(speeds_of(cell, calibration))},
    }
    if cell.links is not None:
        config["cluster"]["links"] = cell.links.words
    mode = mode_name(spec.engine, cell.policy, spec.backend)
    speeds = speeds_of(cell, calibration)
    changed: dict[str, Any] = {
        "mode": mode,
        "policy": cell.policy,
        "world_size": cell.ranks,
        "speeds": speeds,
        "config": config,
    }
    if spec.lr_scale != 1.0:
        changed["lr_scale"] = 1.0 + (spec.lr_scale - 1.0) * (cell.ranks - 1) / (spec.world_size - 1)
    cell_hash = canonical.digest({**config, "of": spec.config_hash, "how": repr((cell.healed, cell.steps))})
    changed |= {
        "config_hash": cell_hash,
        "run_id": f"w{cell.ranks}-s{spec.seed}-{cell_hash[:8]}",
        "source": "predicted",
    }
    note = f"predicted from {spec.run_id}, nothing was trained"
    return replace(spec, **changed, warnings=(note, *beyond(cell, calibration)), faults=())


def records_of(played: PlayedCell) -> list[Record]:
    """Return the records of a played cell, in the order of their times; slices behind."""
    return [*(record for _, record in played.records), *played.slices]


def metrics_of(cell: PredictedCell, calibration: Calibration, played: PlayedCell, **about: Any) -> Metrics:
    """Return the result of a played cell, as of a real run."""
    about = {"env": {}, "git": {}} | about
    spec = about.pop("spec", None) or predicted_spec(cell, calibration)
    return analyze(spec, records_of(played), status=played.status, launched=0.0, ended=played.end, **about)


def error_on_itself(calibration: Calibration, measured: float) -> float:
    """Return how far the prediction of the calibrated run is from what it did (`measured` samples per second), relative."""
    cell = own_cell(calibration)
    rates = [_rate(metrics_of(cell, calibration, play(cell, calibration, seed))) for seed in range(3)]
    return fmean(rates) / measured - 1


def _rate(metrics: Metrics) -> float:
    return metrics.throughput.samples_per_s or 0.0


def predict(cell: PredictedCell, calibration: Calibration, title: str, error: float) -> tuple[Prediction, PlayedCell]:
    """Play a cell; return what is predicted, and its first play. `error`: of the calibration on itself, by which intervals
    are wider."""
    count = next((plays for most, plays in REPEATS if cell.ranks <= most), 2)
    first = play(cell, calibration, 0)
    results = [metrics_of(cell, calibration, first)]
    results += [metrics_of(cell, calibration, play(cell, calibration, seed)) for seed in range(1, count)]
    rates = [_rate(each) for each in results]
    rate, half = fmean(rates), half_width(rates) + abs(error) * fmean(rates)
    metrics = results[0]
    return Prediction(
        title=title,
        mode=metrics.mode,
        ranks=cell.ranks,
        links=" ".join(cell.links.words) if cell.links is not None else "as calibrated",
        samples_per_s=rate,
        low=max(rate - half, 0.0),
        high=rate + half,
        efficiency=metrics.throughput.efficiency,
        waiting=fmean(row.wait for row in metrics.breakdown),
        communicating=fmean(row.comm for row in metrics.breakdown),
        bytes=metrics.sync.bytes,
        limit=limit(sort(records_of(first), 0.0), cell.ranks, calibration.start_s, first.end),
        beyond=tuple(beyond(cell, calibration)),
        plays=count,
        seconds=first.end,
    ), first


def half_width(rates: Sequence[float]) -> float:
    """Return half the width of an interval for one more play, by Student's t."""
    if len(rates) < 2:
        return math.inf
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(rates) - 1))
    return quantile * stdev(rates) * math.sqrt(1 + 1 / len(rates))


def limit(stream: RunRecords, ranks: int, begin: float, end: float) -> str:
    """Return the cause that takes most of the time of all ranks beside computing, with its share."""
    run = explained(stream, ranks, begin, end)
    sums = Counter[str]()
    for cause in run.causes if run is not None else ():
        if cause.cause not in (COMPUTE, "starting"):
            sums[cause.cause] += cause.share  # type: ignore[assignment]  # a Counter of floats
    if not sums or (top := sums.most_common(1)[0])[1] < NO_LIMIT:
        return "computing"
    return f"{top[0]} ({100 * top[1]:.0f} %)"


def beyond(cell: PredictedCell, calibration: Calibration) -> list[str]:
    """Return what of a cell lies outside of what was calibrated."""
    spec, lines = calibration.spec, list[str]()
    if cell.ranks > calibration.ranks:
        far = "far " if cell.ranks >= FAR * calibration.ranks else ""
        lines.append(
            f"{far}more ranks than the {calibration.ranks} calibrated: own costs of collectives grow as a tree"
        )
    if (cell.links is None) != (calibration.links is None) or (
        cell.links is not None and calibration.links is not None and cell.links.words != calibration.links.words
    ):
        lines.append("other links: by the cost model")
    if cell.policy != spec.policy:
        lines.append(f"policy {cell.policy}: what averages cost is that of {spec.policy}")
    if cell.steps is not None:
        lines.append("step times are drawn from a distribution")
    if samples_of(cell, calibration) > calibration.samples:
        lines.append(f"{samples_of(cell, calibration):,} samples an epoch, where the run had {calibration.samples:,}")
    slowest = min(spec.speeds, default=1.0)
    if min(speeds_of(cell, calibration), default=1.0) < slowest:
        lines.append(f"slower ranks than the calibrated {slowest:g}")
    return lines


def body(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return all of it, for JSON."""
    return [asdict(each) for each in predictions]
