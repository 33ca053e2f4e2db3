"""The records of a run that lost ranks, reduced to rounds of which it is known which ranks contributed, or to ranks that
were never lost. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from bench.validate.records.run_records import Records
from ddp.core.messages.events import Progress


def unbroken(known: Records) -> Records:
    """Return the records of a run that lost ranks, without those that a loss may have torn.

    Of snapshots, those remain that the coordinator ordered to be averaged. With a blocking backend, a round loses its
    sketches and distances if other ranks took part than in the round before: a lost rank may have contributed without
    saying so. A rank that joins counts its steps from 0, so its step numbers do not match the others'; its exchanges
    inside steps are dropped.
    """
    known = replace(known, progress=list(_numbered(known)))
    if known.snapshots:
        members = {order.round: order.members for order in known.reduces}
        return replace(known, snapshots=[each for each in known.snapshots if each.rank in members.get(each.round, ())])
    came: dict[int, set[int]] = defaultdict(set)
    for event in known.averaged:
        came[event.round].add(event.rank)
    whole = {number for number, ranks in came.items() if ranks == came.get(number - 1, ranks)}
    torn = [
        each if each.round in whole else replace(each, sketch_before="", sketch_after="", distance=None)
        for each in known.averaged
    ]
    return replace(known, averaged=torn)


def survivors(known: Records) -> Records:
    """Return the times that ranks reported and measured, without those of ranks that were lost or came later. A killed rank
    takes its last measurements with it."""
    gone = {event.rank for event in (*known.lost, *known.joined)} | {order.rank for order in known.drops}
    seconds = {place: seconds for place, seconds in known.seconds.items() if place[0] not in gone}
    return replace(
        known,
        progress=[event for event in known.progress if event.rank not in gone],
        averaged=[event for event in known.averaged if event.rank not in gone],
        evaluated=[event for event in known.evaluated if event.rank not in gone],
        saved=[event for event in known.saved if event.rank not in gone],
        seconds=defaultdict(float, seconds),
    )


def _numbered(known: Records) -> Iterator[Progress]:
    """Iterate over reports, without the exchanges of ranks that joined later."""
    back: dict[int, float] = {}
    for event in known.joined:
        back.setdefault(event.rank, event.at)
    for report in known.progress:
        yield replace(report, exchanged=()) if report.at >= back.get(report.rank, inf) else report
