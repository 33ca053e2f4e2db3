"""What a loss of ranks leaves whole of a run's records: rounds of which it is known who brought something in. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from bench.validate.run_records import Records


def unbroken(known: Records) -> Records:
    """Return the records of a run that lost ranks, but for what a loss may have torn.

    Of snapshots those that were ordered to be averaged. Where ranks meet, a round to which not the same came as to the one
    before has no sketches: one that was lost may be in the average, and never said so."""
    if known.snapshots:
        members = {order.round: order.members for order in known.reduces}
        return replace(known, snapshots=[each for each in known.snapshots if each.rank in members.get(each.round, ())])
    came: dict[int, set[int]] = defaultdict(set)
    for event in known.averaged:
        came[event.round].add(event.rank)
    whole = {number for number, ranks in came.items() if ranks == came.get(number - 1, ranks)}
    torn = [
        each if each.round in whole else replace(each, sketch_before="", sketch_after="") for each in known.averaged
    ]
    return replace(known, averaged=torn)
