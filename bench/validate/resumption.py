"""Whether a run that was gone on with began as its checkpoint was: the model, what each rank's own optimizer keeps, and what
lasts beside: random numbers, the loss's factor, counters.

Ranks sketch these where they save, and where they have restored them. Nothing is computed in between, so they are the same
values. Knows no cells.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.results.schema import Metrics
from bench.validate.run_records import Records
from bench.validate.state_copies import kept_otherwise, unlike
from ddp.core.events import Ready, Resumed, Saved
from ddp.sketches import decode


def most_ranks(m: Metrics) -> int:
    """Return the most ranks that a run has had, before and since it was gone on with."""
    return max(m.world_size, *(m.resumed.ranks if m.resumed is not None else ()), 0)


def begun_otherwise(known: Records) -> str:
    """Say what was another when the run went on; empty: nothing, or it was not sketched."""
    for resumed in known.resumed:
        saved = {event.rank: event for event in _saved(known, resumed)}
        for ready in _ready(known, resumed):
            if saved and (wrong := _model(known, saved[min(saved)], ready) or _own(resumed, saved, ready)):
                return f"rank {ready.rank} went on from checkpoint {resumed.index} with {wrong}"
    return ""


def _saved(known: Records, resumed: Resumed) -> Iterator[Saved]:
    """Iterate over what ranks wrote for the checkpoint, the latest last: one that broke off has the same number."""
    yield from (
        event for event in known.saved if event.index == resumed.index and event.at <= resumed.at and event.sketch
    )


def _ready(known: Records, resumed: Resumed) -> Iterator[Ready]:
    following = min((event.at for event in known.resumed if event.at > resumed.at), default=float("inf"))
    yield from (event for event in known.ready if resumed.at <= event.at < following)


def _model(known: Records, saved: Saved, ready: Ready) -> str:
    if ready.sketch and len(decode(ready.sketch).sizes) != len(known.groups):
        return ""
    far = unlike(known.groups, ready.sketch, saved.sketch)
    return f"another model ({far})" if far else ""


def _own(resumed: Resumed, saved: dict[int, Saved], ready: Ready) -> str:
    own = saved.get(ready.rank)  # a rank that was lost goes on with the state of another
    if own is None:
        return ""
    before, after = dict(own.lasting), dict(ready.lasting)
    other = [name for name in before if after and before[name] != after.get(name) and not resumed.ranks]
    return kept_otherwise(own.optimizer, ready.optimizer) or (f"other {other[0]} than it had" if other else "")
