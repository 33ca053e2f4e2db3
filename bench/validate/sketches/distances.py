"""Whether the distances from the average that ranks report agree with their sketches. Pure.

A sketch is a set of sums with random weights, so the squared distance of two sketches, divided by the mean square of a
weight, estimates that of the states. One estimate is off by a factor of two or three. The mean over the rounds of a run
is much better, if the directions of the differences vary: the weights are fixed for a run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.validate.records.run_records import Records
from bench.validate.sketches.linear import SINGLE
from ddp.core.messages.event_parts import SketchGroup
from ddp.core.messages.events import Averaged
from ddp.sketches import SUMS, decode

WEIGHT = (1.0 + 1.0 / 12.0) ** 2
"""Mean square of a weight, a product of two factors that are uniform in 0.5 to 1.5, with a random sign."""
LEAST, TIMES = 12, 5.0
"""Least number of rounds to judge a mean, and the factor by which it may be off."""
CHANCE = 12.0
"""Logarithm of the odds against a wrong mean, by Chernoff's bound for a chi-squared variable."""
ROUNDING = 0.02
"""Relative error of sums of squares in single precision."""
FAINT = 32 * SINGLE
"""Divergence below which a distance is hidden by the rounding of the sketches' sums, as when the learning rate is low."""
CLEAR, UNEQUAL = 1e-3, 0.1
"""Least divergence that exceeds rounding; and relative error of the ratio of two replicas' squared distances."""


def amiss(known: Records, settings: Mapping[str, Any]) -> str:
    """Say which reported distance the sketches contradict; empty: none. Only plain averages are judged: elastic
    averages and outer optimizers have other distances."""
    if settings.get("elastic") is not None or settings.get("outer", "none") != "none":
        return ""
    parts, shown = known.contributions(), defaultdict[int, list[float]](list)
    ways = list[NDArray[np.float64]]()
    for event in known.averaged:
        average = event.sketch_average or event.sketch_after
        part = parts.get(event.round, {}).get(event.rank)
        before = "" if part is None else part.sketch_before if isinstance(part, Averaged) else part.sketch
        if not (average and before and event.distance and event.divergence):
            continue
        if wrong := _ratio(known.groups, event, average):
            return f"round {event.round}, rank {event.rank}: {wrong}"
        if event.divergence < FAINT:
            continue
        way = _apart(known.groups, before, average)
        ways.append(way)
        shown[event.round].append(float(np.square(way).sum()) / SUMS / WEIGHT / event.distance)
    if wrong := _unequal(known, parts, settings):
        return wrong
    mean = float(np.mean([np.mean(ratios) for ratios in shown.values()])) if len(shown) >= LEAST else 1.0
    if 1.0 / TIMES <= mean <= TIMES or (mean and _directions(ways) * (mean - 1 - log(mean)) < CHANCE):
        return ""
    return f"by sketches, squared distances from averages are {mean:.3g} times those that ranks report"


def _unequal(known: Records, parts: Mapping[int, Mapping[int, Any]], settings: Mapping[str, Any]) -> str:
    """Say which distances of one round contradict each other: of two replicas, each is as far from the mean as the
    other weighs; three or more are never all equally far, to the bit. Narrow wires and parameters round too much, and
    are left out."""
    narrow = {group.dtype for group in known.groups if group.kind == "parameters"} & {"float16", "bfloat16"}
    if narrow or settings.get("wire", "float64") != "float64":
        return ""
    rounds = defaultdict[int, dict[int, Averaged]](dict)
    for event in known.averaged:
        if event.distance and (event.divergence or 0.0) > CLEAR:
            rounds[event.round][event.rank] = event
    alike, several = 0, 0
    for number, events in rounds.items():
        samples = {rank: part.samples for rank, part in parts.get(number, {}).items() if part.samples}
        if samples.keys() != events.keys():
            continue
        distances = [event.distance or 0.0 for _, event in sorted(events.items())]
        weights = [float(count) ** settings.get("gamma", 1.0) for _, count in sorted(samples.items())]
        if len(weights) == 2:
            first, second = (weight**2 * distance for weight, distance in zip(weights, distances, strict=True))
            if not first * (1 - UNEQUAL) <= second <= first * (1 + UNEQUAL):
                shown = " and ".join(f"{distance:.4g}" for distance in distances)
                shares = " and ".join(f"{weight / sum(weights):.1%}" for weight in weights)
                return f"round {number}: squared distances of {shown} do not fit weights of {shares}"
        several += len(weights) > 2
        alike += len(weights) > 2 and len(set(distances)) == 1
    return f"all ranks report equal distances from the average in {alike} rounds" if alike == several >= LEAST else ""


def _ratio(groups: Sequence[SketchGroup], event: Averaged, average: str) -> str:
    """Say that a divergence is not the distance divided by the norm of the average, which sketches give up to a factor
    of two."""
    most = float(np.square(decode(average).sizes[_trained(groups)]).sum())
    squared = (event.divergence or 0.0) ** 2 * most
    distance = event.distance or 0.0
    if not 0.0 < most < np.inf or distance * (1 - ROUNDING) <= squared <= 4 * distance * (1 + ROUNDING):
        return ""
    low, high = np.sqrt([distance / most, 4 * distance / most])
    return f"the reported divergence is {event.divergence:.4g}, but distance over norm is {low:.4g} to {high:.4g}"


def _directions(ways: Sequence[NDArray[np.float64]]) -> float:
    """Return the effective number of directions in which differences of sketches lie: 1 if all are parallel."""
    norms = [float(np.linalg.norm(way)) for way in ways]
    unit = np.array([way / norm for way, norm in zip(ways, norms, strict=True) if norm])
    return float(len(unit) ** 2 / np.square(unit.T @ unit).sum()) if len(unit) else 0.0


def _apart(groups: Sequence[SketchGroup], first: str, second: str) -> NDArray[np.float64]:
    return np.nan_to_num((decode(first).sums - decode(second).sums)[_trained(groups)]).ravel()


def _trained(groups: Sequence[SketchGroup]) -> list[int]:
    return [place for place, group in enumerate(groups) if group.kind == "parameters"]
