"""Predictions of cells: played several times, judged by the arithmetic of real runs, with intervals and what lies outside of
what was calibrated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.predict.evidence import CalibratedCell, metrics_of, off_by, rate_of
from bench.predict.intervals import interval
from bench.predict.play import CORNERS, PlayedCell, PredictedCell, play
from bench.predict.spec import FAR, beyond, otherwise, records_of
from bench.results.analysis.explained import COMPUTE, explained
from bench.results.analysis.stream import RunRecords, sort

REPEATS = ((64, 6), (512, 3))
"""So many plays up to so many ranks; two beyond, and at least one from each run."""
NO_LIMIT = 0.05
"""Where no cause takes more than this part of the time, computing is the limit."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a cell. `low` and `high` are of samples per second, at level `LEVEL`; None: no run tells them."""

    title: str
    mode: str
    ranks: int
    links: str
    samples_per_s: float
    low: float | None
    high: float | None
    trusted: bool
    """Whether runs show what the interval rests on."""
    efficiency: float | None
    """As all below, of the first play: `samples_per_s` has the factor by which plays are off, these have not."""
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


def predict(
    cell: PredictedCell, source: CalibratedCell, title: str, others: Sequence[CalibratedCell] = ()
) -> tuple[Prediction, PlayedCell]:
    """Play a cell from each run of `source`; return what is predicted, and its first play, which has the speed of the
    model as it is. `others`: cells whose runs show how far predictions from `source` are off."""
    calibration, runs = source.calibration, source.runs
    plays = max(next((plays for most, plays in REPEATS if cell.ranks <= most), 2) // len(runs), 1)
    first = play(cell, calibration, 0)
    metrics = metrics_of(cell, calibration, first)
    raw = [[rate_of(cell, run.calibration, seed) for seed in range(plays)] for run in runs]
    predicted = [run.scale(cell.cores) * fmean(each) for run, each in zip(runs, raw, strict=True)]
    own = metrics.throughput.samples_per_s or raw[0][0]
    corners = [rate_of(cell, calibration, 0, assumed) / own for assumed in CORNERS]
    off, shown = off_by(source, others, cell.cores)
    rate, low, high = interval(source.rates, predicted, corners, off, distance(cell, source))
    known = not math.isnan(low)
    return Prediction(
        title=title,
        mode=metrics.mode,
        ranks=cell.ranks,
        links=" ".join(cell.links.words) if cell.links is not None else "as calibrated",
        samples_per_s=rate,
        low=low if known else None,
        high=high if known else None,
        trusted=known and near(cell, source),
        efficiency=metrics.throughput.efficiency,
        waiting=fmean(row.wait for row in metrics.breakdown),
        communicating=fmean(row.comm for row in metrics.breakdown),
        bytes=metrics.sync.bytes,
        limit=limit(sort(records_of(first), 0.0), cell.ranks, calibration.start_s, first.end),
        beyond=tuple(beyond(cell, calibration, shown)),
        plays=plays * len(runs),
        seconds=first.end,
    ), first


def distance(cell: PredictedCell, source: CalibratedCell) -> float:
    """Return how far a cell is from what was calibrated: doublings of ranks, and one for each other thing."""
    own = source.calibration
    return abs(math.log2(cell.ranks / own.ranks)) + len(otherwise(cell, own))


def near(cell: PredictedCell, source: CalibratedCell) -> bool:
    """Return whether a cell is near enough to what was calibrated for its interval to hold: nothing but the number of ranks
    differs, by no more than `FAR` times, and no core is shared by more ranks than before."""
    own, cores = source.calibration, cell.cores or math.inf
    far = max(cell.ranks / own.ranks, own.ranks / cell.ranks) >= FAR
    return not far and not otherwise(cell, own) and (cell.ranks <= cores or cell.ranks <= own.ranks)


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
