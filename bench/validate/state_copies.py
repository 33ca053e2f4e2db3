"""Whether copies of a state are of it: what ranks save is the model that all share, and what a rank joins with is what
another sent.

Nothing is computed in between, so they are the same values. Knows no cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from bench.validate.linear import SketchDifference, apart, combine
from bench.validate.run_records import Records
from ddp.core.event_parts import OptimizerSketch, SketchGroup
from ddp.core.events import Averaged, Saved
from ddp.core.join_events import Joined
from ddp.sketches import decode


def saved_otherwise(known: Records) -> str:
    """Say which checkpoint of a run that lost nobody holds another model than all share; empty: none is known to.

    That is one on all ranks, and the average that a rank had taken last."""
    for copies in _checkpoints(known):
        first = copies[0]
        for copy in copies:
            where = f"checkpoint {copy.index}, rank {copy.rank}"
            if far := unlike(known.groups, copy.sketch, first.sketch):
                return f"{where}: another model was saved than on rank {first.rank} ({far})"
            last = _last_average(known, copy)
            if last is not None and (
                far := unlike(known.groups, copy.sketch, last.sketch_average or last.sketch_after)
            ):
                return f"{where}: what was saved is not the average of round {last.round} ({far})"
    return ""


def joined_otherwise(known: Records, settings: Mapping[str, Any]) -> str:
    """Say which rank joined with another state than it was sent; empty: none is known to. `settings`: of averages."""
    sent = {event.round: event for event in known.shared}
    for joined in known.joined:
        other = sent.get(joined.round)
        if other is None:
            continue
        where = f"rank {joined.rank} joined in round {joined.round} with"
        if far := unlike(known.groups, joined.sketch, other.sketch or _average_before(known, joined)):
            return f"{where} another model than all share ({far})"
        if resets(settings) and not joined.optimizer:
            continue  # it begins anew with that average; the sender may have gone on from there
        # An averaged state is the last average's, from which the sender may have gone on, too.
        values = not settings.get("optimizer_state")
        if wrong := kept_otherwise(other.optimizer, joined.optimizer, values):
            return f"{where} {wrong}"
    return ""


def resets(settings: Mapping[str, Any]) -> bool:
    """Tell whether an average has ranks' own optimizers begin anew. `settings`: of averages."""
    chosen = settings.get("optimizer_reset")
    return bool(chosen) or (chosen is None and settings.get("outer") == "nesterov")


def kept_otherwise(wanted: OptimizerSketch, given: OptimizerSketch, values: bool = True) -> str:
    """Say how the state of a rank's optimizer is not what it must be; empty: it is. `values`: not by its names alone."""
    if [name for name, _ in wanted] != [name for name, _ in given]:
        return f"{_listed(given)} as the state of its optimizer, which was {_listed(wanted)}"
    for (name, old), (_, new) in zip(wanted, given, strict=True):
        group = SketchGroup(f"optimizer.{name}", "optimizer", 1, "float32", False)
        if values and (far := apart([group], new, combine([(1.0, decode(old))]), 0.0)):
            return f"another state of its optimizer ({far})"
    return ""


def unlike(groups: Sequence[SketchGroup], text: str, wanted: str) -> SketchDifference | None:
    """Return where two sketches of what should be the same values differ; None where one was not made."""
    same = not text or not wanted or text == wanted
    return None if same else apart(groups, text, combine([(1.0, decode(wanted))]), 0.0)


def _checkpoints(known: Records) -> Iterator[list[Saved]]:
    """Iterate over checkpoints by what ranks saved for each, between one beginning of the run and the next."""
    starts = [-inf, *(event.at for event in known.resumed), inf]
    for begin, end in pairwise(starts):
        by_index: dict[int, list[Saved]] = {}
        for event in known.saved:
            if begin <= event.at < end and event.sketch and not event.error:
                by_index.setdefault(event.index, []).append(event)
        yield from by_index.values()


def _last_average(known: Records, saved: Saved) -> Averaged | None:
    """Return the last average that a rank had taken when it saved, since the run was resumed."""
    own = (each for each in _averages(known, saved.at) if each.rank == saved.rank)
    return max(own, key=lambda each: each.at, default=None)


def _average_before(known: Records, joined: Joined) -> str:
    """Return the sketch of the average that a rank joined behind; empty: there is none, or it was not sketched."""
    earlier = (each for each in _averages(known, joined.at) if each.round < joined.round)
    last = max(earlier, key=lambda each: each.round, default=None)
    return "" if last is None else last.sketch_average or last.sketch_after


def _averages(known: Records, until: float) -> Iterator[Averaged]:
    """Iterate over the averages of all ranks up to a time, since the run was last resumed before it."""
    began = max((event.at for event in known.resumed if event.at <= until), default=-inf)
    return (each for each in known.averaged if began <= each.at <= until)


def _listed(sketches: OptimizerSketch) -> str:
    return ", ".join(name for name, _ in sketches) or "nothing"
