"""Where the seconds of all ranks went, from launch to the last rank's end; each second belongs to one part. Pure
arithmetic of slices and of the ranks' histories. Knows no failure rates, costs or policies.

Training is divided into discarded, repeated and kept. Time in which a rank stands still is divided by its reason:
`detecting` from a loss until it is noticed, `regrouping` from there until the rank trains again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.base.grouping import grouped
from bench.results.analysis.breakdown import CATEGORIES, categories
from bench.results.analysis.histories import Histories, Regrouping, Stay
from bench.results.analysis.stream import Floats, Places, Slices
from bench.results.analysis.stretches import Stretches, common, intersection, seconds, union, without

PARTS = (
    *("kept", "repeated", "discarded", "evaluating", "saving", "communicating", "waiting"),
    *("detecting", "regrouping", "restoring", "starting", "absent", "other"),
)
"""The parts; each second of a rank belongs to one."""
_STAND = {"comm": "communicating", "wait": "waiting", "eval": "evaluating", "checkpoint": "saving"}
"""Category of a slice other than training -> its part, if no fault is the reason."""
_TRAIN = ("compute", "data")
Away = Sequence[tuple[int, float, float]]
"""(rank, begin, end) of times without a machine for the rank, seconds."""


Reasons = Sequence[tuple[str, Stretches]]
"""(part, when) for time in which a rank stands still; the first that applies counts."""


@dataclass(frozen=True)
class _Breaks:
    """Faults that concern all ranks: when lost ranks were not yet noticed, and when ranks regrouped."""

    unnoticed: Stretches
    regroupings: tuple[Regrouping, ...]
    late: Reasons = ()
    """Which ranks this rank waited for, if known."""


def rank_seconds(slices: Slices, histories: Histories, away: Away = ()) -> dict[str, float]:
    """Return the seconds of all ranks by part. None is negative. They sum to size x (end - begin), unless slices
    overlap. `repeated` is contained in `kept` until `repetition` separates them."""
    ranks = seconds_by_rank(slices, histories, away)
    return {part: max(sum(each[part] for each in ranks), 0.0) for part in PARTS}


def seconds_by_rank(
    slices: Slices, histories: Histories, away: Away = (), late: Mapping[int, Reasons] | None = None
) -> list[dict[str, float]]:
    """Return the same for each rank. `late`: rank -> further parts into which its waiting is divided, and when."""
    category = categories(slices)
    stays = {rank: histories.stays(rank, slices.stop[slices.places(rank)]) for rank in range(histories.size)}
    gone = [stay for each in stays.values() for stay in each if stay.state == "detecting"]
    breaks = _Breaks(
        union(np.array([stay.start for stay in gone]), np.array([stay.stop for stay in gone])),
        tuple(histories.regroupings()),
    )
    machines = grouped((rank, (start, stop)) for rank, start, stop in away)
    ranks = []
    for rank, each in stays.items():
        mine = slices.places(rank)
        places = {name: mine[category[mine] == CATEGORIES.index(name)] for name in CATEGORIES}
        own = breaks if late is None else replace(breaks, late=late.get(rank, ()))
        sums = _of_rank(slices, places, each, histories, own, rank)
        _without_machine(sums, each, machines.get(rank, ()))
        ranks.append(sums)
    return ranks


def _without_machine(sums: dict[str, float], stays: list[Stay], away: Iterable[tuple[float, float]]) -> None:
    """Count the time that a starting rank waits for a machine as absent."""
    for start, stop in away:
        for stay in stays:
            if stay.state == "starting" and (shared := min(stop, stay.stop) - max(start, stay.start)) > 0:
                sums["starting"] -= shared
                sums["absent"] += shared


def repetition(sums: dict[str, float], before: float = 0.0, again: bool = True) -> dict[str, float]:
    """Return the sums with `repeated` separated from `kept`: as many seconds as were discarded in this run, if that was
    trained `again`, and `before` it."""
    repeated = min(sums["discarded"] * again + before, sums["kept"])
    return sums | {"repeated": repeated, "kept": sums["kept"] - repeated}


def _of_rank(
    slices: Slices, places: dict[str, Places], stays: list[Stay], histories: Histories, breaks: _Breaks, rank: int
) -> dict[str, float]:
    sums = dict.fromkeys(PARTS, 0.0)
    training = np.sort(np.concatenate([places[name] for name in _TRAIN]))
    unwritten = np.array(histories.unwritten(rank, slices.stop[slices.places(rank)])).reshape(-1, 2)
    trains = np.append(slices.start[training], unwritten[:, 0]), np.append(slices.stop[training], unwritten[:, 1])
    order = np.argsort(trains[0], kind="stable")
    trains = trains[0][order], trains[1][order]
    live = _stretches((stay.start, stay.stop) for stay in stays if stay.state == "live")
    lost = _lost_training(slices, places["data"], trains, histories, rank)
    trained = common(live, union(*trains))
    gone = common(live, intersection(lost, union(*trains))) if lost[0].size else 0.0
    sums["kept"] = (trained - gone) * histories.kept(rank)
    sums["discarded"] = trained - sums["kept"]
    for stay in stays:
        if stay.state != "live":
            part = "regrouping" if stay.state == "returning" else stay.state
            sums[part] += stay.stop - stay.start
    _stood(sums, slices, places, trains, live, breaks)
    return sums


def _lost_training(slices: Slices, data: Places, trains: Stretches, histories: Histories, rank: int) -> Stretches:
    """Return when a rank trained steps that no report covers: before it was lost, and steps that were undone."""
    losses, undone = histories.losses(rank), histories.undone[rank]
    unreported = [(histories.last_report(rank, at), at) for at in losses if not histories.in_step]
    if histories.saved is not None:
        unreported.append((histories.saved, histories.end))
    begins = slices.start[data] if data.size else trains[0]
    for at in (*undone, *losses) if histories.in_step else ():
        place = int(np.searchsorted(begins, at))
        if place:
            since = histories.last_report(rank, at) if at in losses else 0.0  # slices up to there may be missing
            unreported.append((max(float(begins[place - 1]), since), at))
    return _stretches(unreported)


def _stood(
    sums: dict[str, float],
    slices: Slices,
    places: dict[str, Places],
    trains: Stretches,
    live: Stretches,
    breaks: _Breaks,
) -> None:
    """Divide the time in which a rank was present but did not train."""
    anew = _anew(trains, live, breaks.regroupings)
    first = float(trains[0][0]) if trains[0].size else float(live[1][0]) if live[1].size else 0.0
    begun = (live[0][:1], np.minimum(live[1][:1], max(first, float(live[0][0])))) if live[0].size else live
    reasons = (("starting", begun), ("detecting", breaks.unnoticed), ("regrouping", anew))
    covered = [union(*trains)]
    for name, part in _STAND.items():
        mine = places[name]
        joins = mine[slices.kind[mine] == "join"] if name == "comm" else mine[:0]
        copies = mine[slices.kind[mine] == "copy"] if name == "comm" else mine[:0]
        rest = np.setdiff1d(mine, np.concatenate([joins, copies])) if joins.size or copies.size else mine
        wire = slices.wire_start
        if name == "comm":
            waited = intersection(live, union(slices.start[rest], wire[rest]))
            _divide(sums, waited, "waiting", (*reasons, *breaks.late))
            joined = intersection(live, union(slices.start[joins], slices.stop[joins]))
            _divide(sums, joined, "regrouping", reasons[:1])
            moved = (*reasons[:2], ("restoring", anew))
            _divide(sums, intersection(live, union(slices.start[copies], slices.stop[copies])), part, moved)
        why = () if name in ("eval", "checkpoint") else (*reasons, *breaks.late) if name == "wait" else reasons
        _divide(sums, intersection(live, union(wire[rest], slices.stop[rest])), part, why)
        covered.append(union(slices.start[mine], slices.stop[mine]))
    all_slices = union(*(np.concatenate(side) for side in zip(*covered, strict=True)))
    _divide(sums, without(live, all_slices), "other", reasons)


def _anew(trains: Stretches, live: Stretches, regroupings: Sequence[Regrouping]) -> Stretches:
    """Return the spans from when ranks had to regroup until this rank began a batch after it was ordered to work."""
    if not regroupings:
        return _stretches(())
    starts = np.array([each.start for each in regroupings])
    after = np.searchsorted(trains[0], [each.ordered for each in regroupings])
    last = float(live[1][-1]) if live[1].size else 0.0
    return union(starts, np.append(trains[0], last)[after])


def _divide(sums: dict[str, float], time: Stretches, part: str, reasons: Reasons) -> None:
    """Count the time as the first reason that applies, else as `part`."""
    for reason, when in reasons:
        sums[reason] = sums.get(reason, 0.0) + common(time, when)
        time = without(time, when)
    sums[part] += seconds(time)


def _stretches(pairs: Iterable[tuple[float, float]]) -> Stretches:
    array = np.array(list(pairs), np.float64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


__all__ = ["PARTS", "Floats", "rank_seconds", "seconds_by_rank"]
