"""How far replicas were from their average: what ranks report is what their sketches show. Pure.

The squared distance of two states is, on the mean over keys, that of their sketches over the mean square of a weight. One
sketch is off by a factor of two or three; the mean over the rounds of a run is not, if their directions vary. Weights are
the run's, so what always lies along few directions is drawn but once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.validate.run_records import Records
from ddp.core.event_parts import SketchGroup
from ddp.core.events import Averaged
from ddp.sketches import SUMS, decode

WEIGHT = (1.0 + 1.0 / 12.0) ** 2
"""Mean square of a weight: a product of two of even odds from 0.5 to 1.5, of a random sign."""
LEAST, TIMES = 12, 5.0
"""Fewest rounds whose mean says something, and how far it may be off."""
CHANCE = 12.0
"""Logarithm of the odds against a mean that is wrong: Chernoff's bound of a chi-squared draw."""
ROUNDING = 0.02
"""Relative: sums of squares in single precision."""
CLEAR, UNEQUAL = 1e-3, 0.1
"""Divergence from which on rounding does not tell; how far squared distances of two replicas may be off their weights."""


def amiss(known: Records, settings: Mapping[str, Any]) -> str:
    """Say which distance was reported that sketches do not show; empty where none is known to be wrong.

    Of plain averages alone: a blend or an outer optimizer has distances of its own."""
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
        way = _apart(known.groups, before, average)
        ways.append(way)
        shown[event.round].append(float(np.square(way).sum()) / SUMS / WEIGHT / event.distance)
    if wrong := _unequal(known, parts, settings):
        return wrong
    mean = float(np.mean([np.mean(ratios) for ratios in shown.values()])) if len(shown) >= LEAST else 1.0
    if 1.0 / TIMES <= mean <= TIMES or (mean and _directions(ways) * (mean - 1 - log(mean)) < CHANCE):
        return ""
    return f"squared distances from averages are {mean:.3g} times as large by sketches as ranks report"


def _unequal(known: Records, parts: Mapping[int, Mapping[int, Any]], settings: Mapping[str, Any]) -> str:
    """Say which distances of one round do not fit together: what is weighed and averaged lies so that two replicas are as
    far as the other one weighs, and of more never all are equally far, to the bit. Narrow wires and parameters round."""
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
                return f"round {number}: squared distances of {shown} do not go with weights of {shares}"
        several += len(weights) > 2
        alike += len(weights) > 2 and len(set(distances)) == 1
    return f"all ranks are equally far from the average in {alike} rounds" if alike == several >= LEAST else ""


def _ratio(groups: Sequence[SketchGroup], event: Averaged, average: str) -> str:
    """Say how a divergence is not the distance over the norm, which is known to a factor of two."""
    most = float(np.square(decode(average).sizes[_trained(groups)]).sum())
    squared = (event.divergence or 0.0) ** 2 * most
    distance = event.distance or 0.0
    if not np.isfinite(most) or distance * (1 - ROUNDING) <= squared <= 4 * distance * (1 + ROUNDING):
        return ""
    low, high = np.sqrt([distance / most, 4 * distance / most])
    return f"a divergence of {event.divergence:.4g} was reported, distance over norm is {low:.4g} to {high:.4g}"


def _directions(ways: Sequence[NDArray[np.float64]]) -> float:
    """Return along how many directions differences of sketches lie: all along one are 1, however many there are."""
    norms = [float(np.linalg.norm(way)) for way in ways]
    unit = np.array([way / norm for way, norm in zip(ways, norms, strict=True) if norm])
    return float(len(unit) ** 2 / np.square(unit.T @ unit).sum()) if len(unit) else 0.0


def _apart(groups: Sequence[SketchGroup], first: str, second: str) -> NDArray[np.float64]:
    return np.nan_to_num((decode(first).sums - decode(second).sums)[_trained(groups)]).ravel()


def _trained(groups: Sequence[SketchGroup]) -> list[int]:
    return [place for place, group in enumerate(groups) if group.kind == "parameters"]
