"""Where the seconds of all ranks went, and who came last to reductions: of runs that lost nobody, by sums of slices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import fsum

from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure
from bench.validate.recount.timing import COMPUTING, MEETING, SECOND, SHARE, exposed, lateness

NEVER = ("repeated", "discarded", "detecting", "regrouping", "restoring", "absent")
"""Parts of runs in which somebody was lost, or that were gone on with."""
LOST = (*NEVER[1:], "saving", "starting")
"""Parts that are no progress."""


def goodput(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield what the parts of all ranks' seconds must be, and the measures that follow from them."""
    given, ranks = m.goodput, range(m.world_size)
    ready, done = ({event.rank: event.at for event in events} for events in (known.ready, known.finished))
    trained = {event.rank for event in known.progress if event.samples}  # what an idle rank does is not kept
    if given is None or known.resumed or not known.slices or not set(ranks) == ready.keys() == done.keys() == trained:
        return
    begin, end, parts = known.headers[-1].launched, max(done.values()), given.parts
    whole = m.world_size * (end - begin)
    yield Figure("goodput.rank_seconds", given.rank_seconds, whole, SECOND * m.world_size)
    late, met = lateness(known), fsum(exposed(known).values())

    def share(*kinds: str) -> float:
        return fsum(known.seconds[rank, kind] for rank in ranks for kind in kinds) / whole

    # Until its first batch a rank starts, whatever it waits for.
    firsts = [known.spans.get((rank, "data"), (done[rank],))[0] - ready[rank] for rank in ranks]
    starting = fsum(ready[rank] - begin for rank in ranks) / whole
    waiting = share("wait") + (fsum(late.values()) + fsum(end - at for at in done.values()) - met) / whole
    meeting, early = share(*MEETING) + (met - fsum(late.values())) / whole, max(fsum(firsts), 0.0) / whole
    for name, wanted, room in (
        *(("kept", share("data", *COMPUTING), 0.0), ("evaluating", share("evaluate"), 0.0)),
        *(("saving", share("checkpoint"), 0.0), ("communicating", meeting - early / 2, early / 2)),
        *(("starting", starting + early / 2, early / 2), ("waiting", waiting - early / 2, early / 2)),
        *((part, 0.0, 0.0) for part in NEVER),
    ):
        yield Figure(f"goodput.parts.{name}", getattr(parts, name), wanted, SHARE + room)
    lost = fsum(getattr(parts, name) for name in LOST)
    yield Figure("goodput.ettr", given.ettr, max(1 - lost, 0.0))
    yield Figure("goodput.goodput", given.goodput, (parts.kept + parts.repeated) / (1 - parts.absent))
    yield Figure("goodput.ett", given.ett, max(1 - lost, 0.0) + parts.discarded - parts.repeated)
    yield Figure("goodput.ucf", given.ucf, max(1 - lost - parts.communicating, 0.0))


def arrivals(m: Metrics, known: Records) -> Iterator[Figure]:
    """Yield how often each rank came last to a reduction of several, and how late on the mean."""
    came = defaultdict[int, dict[int, float]](dict)
    for number, each in known.collectives.items():
        came[number].update((rank, begin) for rank, begin, _, _ in each)
    for event in () if came else known.snapshots:
        came[event.round][event.rank] = event.at
    if m.timeline is None or known.resumed or len(m.timeline.arrivals) != m.world_size:
        return
    shared = [each for each in came.values() if len(each) > 1]
    for rank, given in enumerate(m.timeline.arrivals):
        own = [each for each in shared if rank in each]
        late = [each[rank] - min(each.values()) for each in own]
        ties = sum(list(each.values()).count(max(each.values())) > 1 for each in own)
        name = f"timeline.arrivals[{rank}]"
        yield Figure(f"{name}.reductions", given.reductions, len(own))
        yield Figure(f"{name}.last", given.last, sum(each[rank] == max(each.values()) for each in own), ties)
        yield Figure(f"{name}.last_share", given.last_share, given.last / len(own) if own else None)
        yield Figure(f"{name}.late_ms", given.late_ms, 1e3 * fsum(late) / len(late) if late else None, 1e-6)
