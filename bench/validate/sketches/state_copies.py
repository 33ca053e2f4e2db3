"""Whether copies of the state equal their originals: ranks save the model that all ranks share, and a rank joins with
what another rank sent.

Nothing is computed in between, so the values must be equal. Knows no cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any

from bench.validate.records.run_records import Records
from bench.validate.sketches.linear import SketchDifference, apart, combine
from ddp.core.messages.event_parts import OptimizerSketch, SketchGroup
from ddp.core.messages.events import Averaged, Saved
from ddp.core.messages.join_events import Joined
from ddp.sketches import decode


def saved_otherwise(known: Records) -> str:
    """Name the checkpoint of a run that lost nobody whose model is not the shared one; empty: none is known.

    The shared model is equal on all ranks, and is the last average that a rank applied.
    """
    for copies in checkpoints(known):
        first = copies[0]
        for copy in copies:
            where = f"checkpoint {copy.index}, rank {copy.rank}"
            if far := unlike(known.groups, copy.sketch, first.sketch):
                return f"{where}: the saved model differs from that of rank {first.rank} ({far})"
            last = _last_average(known, copy)
            if last is not None and (
                far := unlike(known.groups, copy.sketch, last.sketch_average or last.sketch_after)
            ):
                return f"{where}: the saved model is not the average of round {last.round} ({far})"
    return ""


def joined_otherwise(known: Records, settings: Mapping[str, Any]) -> str:
    """Name the rank that joined with another state than was sent; empty: none is known. `settings`: of averaging."""
    sent = {event.round: event for event in known.shared}
    for joined in known.joined:
        other = sent.get(joined.round)
        if other is None:
            continue
        where = f"rank {joined.rank} joined in round {joined.round} with"
        if far := unlike(known.groups, joined.sketch, other.sketch or _average_before(known, joined)):
            return f"{where} a model that differs from the shared one ({far})"
        if resets(settings) and not joined.optimizer:
            continue  # it resets its optimizer at that average; the sender may have taken steps since
        # An averaged state is that of the last average; the sender may have taken steps since, too.
        values = not settings.get("optimizer_state")
        if wrong := kept_otherwise(other.optimizer, joined.optimizer, values):
            return f"{where} {wrong}"
    return ""


def resets(settings: Mapping[str, Any]) -> bool:
    """Return whether each average resets the ranks' own optimizers. `settings`: of averaging."""
    chosen = settings.get("optimizer_reset")
    return bool(chosen) or (chosen is None and settings.get("outer") == "nesterov")


def kept_otherwise(wanted: OptimizerSketch, given: OptimizerSketch, values: bool = True) -> str:
    """Say how the state of a rank's optimizer differs from `wanted`; empty: it does not. `values`: compare values, not
    only names."""
    if [name for name, _ in wanted] != [name for name, _ in given]:
        return f"optimizer state {_listed(given)} instead of {_listed(wanted)}"
    for (name, old), (_, new) in zip(wanted, given, strict=True):
        group = SketchGroup(f"optimizer.{name}", "optimizer", 1, "float32", False)
        if values and (far := apart([group], new, combine([(1.0, decode(old))]), 0.0)):
            return f"a different optimizer state ({far})"
    return ""


def unlike(groups: Sequence[SketchGroup], text: str, wanted: str) -> SketchDifference | None:
    """Return where two sketches of equal values differ; None if they do not, or one is missing."""
    same = not text or not wanted or text == wanted
    return None if same else apart(groups, text, combine([(1.0, decode(wanted))]), 0.0)


def checkpoints(known: Records) -> Iterator[list[Saved]]:
    """Iterate over checkpoints, each as the list of what ranks saved for it; resumptions separate checkpoints of equal
    number."""
    starts = [-inf, *(event.at for event in known.resumed), inf]
    for begin, end in pairwise(starts):
        by_index: dict[int, list[Saved]] = {}
        for event in known.saved:
            if begin < event.at <= end and event.sketch and not event.error:
                by_index.setdefault(event.index, []).append(event)
        yield from by_index.values()


def _last_average(known: Records, saved: Saved) -> Averaged | None:
    """Return the last average that a rank had applied when it saved, since the run was resumed."""
    own = (each for each in _averages(known, saved.at) if each.rank == saved.rank)
    return max(own, key=lambda each: each.at, default=None)


def _average_before(known: Records, joined: Joined) -> str:
    """Return the sketch of the average before a rank joined; empty: there is none, or it was not sketched."""
    earlier = (each for each in _averages(known, joined.at) if each.round < joined.round)
    last = max(earlier, key=lambda each: each.round, default=None)
    return "" if last is None else last.sketch_average or last.sketch_after


def _averages(known: Records, until: float) -> Iterator[Averaged]:
    """Iterate over the averages of all ranks up to a time, from the last resumption before it."""
    began = max((event.at for event in known.resumed if event.at <= until), default=-inf)
    return (each for each in known.averaged if began <= each.at <= until)


def _listed(sketches: OptimizerSketch) -> str:
    return ", ".join(name for name, _ in sketches) or "nothing"
