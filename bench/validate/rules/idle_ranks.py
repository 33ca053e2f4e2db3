"""A rank that has done all that it was ordered to do waits for the next order, and has timings of that. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import itemgetter

from bench.results.runfolder import Run
from bench.validate.records.run_records import Records, Work
from ddp.backends import is_torch_native
from ddp.core.messages.commands import Train
from ddp.core.messages.events import Averaged, Evaluated, Progress, Saved, Snapshot

SHARE = 0.25
"""Least fraction of that time with timings: on a busy machine, a rank may not run before the next order is there."""
CLOCK = 0.2
"""Seconds that may have none."""
Done = Progress | Snapshot | Averaged | Evaluated | Saved


def unwaited(run: Run, known: Records) -> str:
    """Name the rank that recorded too little waiting for orders; empty: none. Shared work is not judged, nor are ranks
    that came later."""
    m = run.metrics
    shared = any(isinstance(order, Train) and order.chunk.parts > 1 for _, order in known.work)
    if m.engine != "elche" or is_torch_native(m.backend) or shared or known.resumed or known.joined:
        return ""
    for rank, idle in sorted(_idle(known).items()):
        waited = known.seconds[rank, "wait"]
        if waited < SHARE * idle - CLOCK:
            return f"rank {rank} waited for orders for {idle:.3g} s, but recorded {waited:.3g} s of waiting"
    return ""


def _idle(known: Records) -> dict[int, float]:
    """Return rank -> seconds between its reports that all is done, and the next orders."""
    done: list[Done] = [*known.progress, *known.snapshots, *known.averaged, *known.evaluated, *known.saved]
    moves: list[tuple[float, Work | Done]] = [*((event.at, event) for event in done), *known.work]
    granted, due = Counter[int](), Counter[int]()
    since: dict[int, float] = {}
    idle = defaultdict[int, float](float)
    for at, move in sorted(moves, key=itemgetter(0)):
        rank = move.rank
        if isinstance(move, Progress):
            granted[rank] -= move.samples
        elif isinstance(move, Done):
            due[rank] -= 1
            if granted[rank] <= 0 and due[rank] <= 0:
                since[rank] = at
        else:
            idle[rank] += at - since.pop(rank, at)
            if isinstance(move, Train):
                granted[rank] += move.chunk.stop - move.chunk.start
            else:
                due[rank] += 1
    return idle
