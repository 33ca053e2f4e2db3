"""Whether a resumed run began with the state of its checkpoint: the model, each rank's optimizer state, and what else
lasts: random number generators, the gradient scale, counters.

Ranks sketch this state when they save it and after they have restored it. Nothing is computed in between, so the values
must be equal. Knows no cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.base.grouping import grouped
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.sketches.linear import apart, combine
from bench.validate.sketches.state_copies import checkpoints, kept_otherwise, unlike
from ddp.core.messages.event_parts import OptimizerSketch, SketchGroup
from ddp.core.messages.events import Ready, Resumed, Saved
from ddp.sketches import SHARDS, Sketch, decode


def most_ranks(m: Metrics) -> int:
    """Return the most ranks that a run has had, before and since it was resumed."""
    return max(m.world_size, *(m.resumed.ranks if m.resumed is not None else ()), 0)


def begun_otherwise(known: Records) -> str:
    """Say which state differed when the run was resumed; empty: none, or it was not sketched."""
    for resumed in known.resumed:
        saved = {event.rank: event for event in _saved(known, resumed)}
        ranks = list(_ready(known, resumed))
        if wrong := _shards(list(saved.values()), ranks):
            return f"ranks resumed from checkpoint {resumed.index} with {wrong}"
        for ready in ranks:
            if saved and (wrong := _model(known, saved[min(saved)], ready) or _own(resumed, saved, ready)):
                return f"rank {ready.rank} resumed from checkpoint {resumed.index} with {wrong}"
    return ""


def _saved(known: Records, resumed: Resumed) -> Sequence[Saved]:
    """Return what ranks saved for the checkpoint; before an earlier resumption, one of the same number may have broken
    off."""
    same = (each for each in checkpoints(known) if each[0].index == resumed.index and each[0].at <= resumed.at)
    return max(same, key=lambda each: each[0].at, default=())


def _ready(known: Records, resumed: Resumed) -> Iterator[Ready]:
    following = min((event.at for event in known.resumed if event.at > resumed.at), default=float("inf"))
    yield from (event for event in known.ready if resumed.at <= event.at < following)


def _model(known: Records, saved: Saved, ready: Ready) -> str:
    if ready.sketch and len(decode(ready.sketch).sizes) != len(known.groups):
        return ""
    far = unlike(known.groups, ready.sketch, saved.sketch)
    return f"another model ({far})" if far else ""


def _own(resumed: Resumed, saved: dict[int, Saved], ready: Ready) -> str:
    own = saved.get(ready.rank, saved[min(saved)])  # a rank that saved nothing goes on with the state of the first
    wanted, given = (
        tuple(part for part in each if not part[0].startswith(SHARDS)) for each in (own.optimizer, ready.optimizer)
    )
    before, after = dict(own.lasting), dict(ready.lasting)
    same = ready.rank in saved and not resumed.ranks
    other = [name for name in before if after and before[name] != after.get(name) and same]
    return kept_otherwise(wanted, given) or (f"other {other[0]} than it had saved" if other else "")


def _shards(saved: Sequence[Saved], ranks: Sequence[Ready]) -> str:
    """Compare the sharded state of all ranks together, for any number of ranks: sketches of shards add up to that of
    the whole."""
    before, after = _sums([event.optimizer for event in saved]), _sums([event.optimizer for event in ranks])
    for name in sorted(before.keys() | after.keys()) if before and after else ():
        if name not in before or name not in after:
            return f"no {name}" if name in before else f"{name}, which no rank had saved"
        group = SketchGroup(name, "optimizer", 1, "float32", False)
        if far := apart([group], combine(after[name]), combine(before[name]), 0.0):
            return f"other {far}"
    return ""


def _sums(sketches: Sequence[OptimizerSketch]) -> dict[str, list[tuple[float, Sketch]]]:
    """Return name -> the sketches of all ranks, each once."""
    return grouped((name, (1.0, decode(text))) for each in sketches for name, text in each if name.startswith(SHARDS))
