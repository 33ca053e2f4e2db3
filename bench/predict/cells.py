"""Predictions of cells: played several times and analysed like real runs, with intervals and a list of what was not
calibrated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.predict.calibration import Calibration
from bench.predict.evidence import CalibratedCell, metrics_of, off_by, rate_of
from bench.predict.intervals import interval
from bench.predict.play import CORNERS, PlayedCell, play
from bench.predict.predicted_cell import PredictedCell, shares_anew
from bench.predict.spec import FAR, beyond, otherwise, records_of
from bench.results.analysis.explained import COMPUTE, NAMES, explained
from bench.results.analysis.lateness import WAITING_FOR
from bench.results.analysis.slow_links import OVER_SLOW_LINK
from bench.results.analysis.stream import RunRecords, sort

REPEATS = ((64, 6), (512, 3))
"""(most ranks, number of plays); two plays for more ranks; and at least one play from each run."""
ABOUT_A_RANK = {WAITING_FOR: "waiting", OVER_SLOW_LINK: "communicating over slow links"}
"""Start of the causes that name a rank -> what they are together."""
NO_LIMIT = 0.05
"""If no cause takes more than this fraction of the time, computing is the limit."""


@dataclass(frozen=True)
class Prediction:
    """The prediction for a cell. `low` and `high` bound the samples per second at level `LEVEL`; None: there are too
    few runs."""

    title: str
    mode: str
    ranks: int
    links: str
    samples_per_s: float
    low: float | None
    high: float | None
    trusted: bool
    """Whether runs support the interval's assumptions."""
    efficiency: float | None
    """This and the following figures are of the first play, without the correction factor in `samples_per_s`."""
    waiting: float
    """Fraction of the ranks' wall time; so is `communicating`."""
    communicating: float
    bytes: int
    limit: str
    """The cause, besides computing, that takes most of the time."""
    beyond: tuple[str, ...]
    """What was not calibrated; empty: nothing."""
    plays: int
    seconds: float
    """Predicted seconds from launch to end."""


def predict(
    cell: PredictedCell, source: CalibratedCell, title: str, others: Sequence[CalibratedCell] = ()
) -> tuple[Prediction, PlayedCell]:
    """Play a cell from each run of `source`; return its prediction and its first play, without the correction factor.
    `others`: cells whose runs show the error of predictions from `source`."""
    calibration, runs = source.calibration, source.runs
    plays = max(next((plays for most, plays in REPEATS if cell.ranks <= most), 2) // len(runs), 1)
    first = play(cell, calibration, 0)
    metrics = metrics_of(cell, calibration, first)
    raw = [[rate_of(cell, run.calibration, seed) for seed in range(plays)] for run in runs]
    predicted = [run.scale(cell.cores) * fmean(each) for run, each in zip(runs, raw, strict=True)]
    own = metrics.throughput.samples_per_s or raw[0][0]
    scales = [runs[0].scale(cell.cores, assumed) / runs[0].scale(cell.cores) for assumed in CORNERS]
    corners = [
        rate_of(cell, calibration, 0, assumed) / own * scale for assumed, scale in zip(CORNERS, scales, strict=True)
    ]
    off, shown = off_by(source, others, cell.cores)
    rate, low, high = interval(source.rates, predicted, corners, off, distance(cell, source))
    known = not math.isnan(low)
    return Prediction(
        title=title,
        mode=metrics.mode,
        ranks=cell.ranks,
        links=" ".join(cell.links.words) if cell.links is not None else _without(calibration),
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
    """Return the distance of a cell from the calibrated one: doublings of ranks, plus one for each other difference."""
    own = source.calibration
    return abs(math.log2(cell.ranks / own.ranks)) + len(otherwise(cell, own))


def near(cell: PredictedCell, source: CalibratedCell) -> bool:
    """Return whether a cell is close enough to the calibrated one for its interval to hold: only the number of ranks
    differs, by less than `FAR` times, and cores are shared as in the runs."""
    own = source.calibration
    far = max(cell.ranks / own.ranks, own.ranks / cell.ranks) >= FAR
    return not far and not otherwise(cell, own) and not shares_anew(cell, own)


def limit(stream: RunRecords, ranks: int, begin: float, end: float) -> str:
    """Return the cause, besides computing, that takes most of all ranks' time, with its fraction; of causes that name a
    rank all together, unless one is most of them."""
    run = explained(stream, ranks, begin, end)
    single, sums = defaultdict[str, float](float), defaultdict[str, float](float)
    for cause in run.causes if run is not None else ():
        if cause.cause not in (COMPUTE, "starting"):
            single[cause.cause] += cause.share
            sums[_of_all(cause.cause)] += cause.share
    top = max(sums, key=sums.__getitem__, default="")
    if not top or sums[top] < NO_LIMIT:
        return "computing"
    most = max((cause for cause in single if _of_all(cause) == top), key=single.__getitem__)
    name, share = (most, single[most]) if single[most] > sums[top] / 2 else (top, sums[top])
    return f"{NAMES.get(name, name)} ({100 * share:.0f} %)"


def _of_all(cause: str) -> str:
    """Return a cause without the rank that it is about: many ranks may wait for many others."""
    return next((words for start, words in ABOUT_A_RANK.items() if cause.startswith(start)), cause)


def _without(calibration: Calibration) -> str:
    return "as calibrated" if calibration.links is None else "no links"
