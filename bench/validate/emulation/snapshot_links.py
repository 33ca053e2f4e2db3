"""Snapshots and their average cross the links between ranks and the coordinator, which is on rank 0's host.

A snapshot is there no earlier than the order for it and its bytes have crossed; likewise a rank's answer after its average
was sent. On a shared link one follows the other. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.base.grouping import grouped
from bench.results.schema import Metrics
from bench.validate.emulation.link_words import WrittenLink, WrittenLinks
from bench.validate.records.run_records import UNBLOCKED, Records
from ddp.core.messages.commands import Apply, Average

CLOCK = 1e-6
"""Seconds of rounding."""


def quick_snapshot(m: Metrics, known: Records, links: WrittenLinks, nearly: float) -> str:
    """Name the round whose snapshots, or whose average, crossed the links too quickly; empty: none. Of a run of one host
    that was never resumed."""
    if m.backend != UNBLOCKED or known.resumed or any(event.host for event in known.ready):
        return ""
    # In virtual time a rank's report is dated by its arrival, else by its sending.
    answers = 2 if m.engine == "virtual" else 1
    ordered, sent = _first(known, Average), _first(known, Apply)
    size = {(event.round, event.rank): event.bytes // 2 for event in known.averaged}
    done = {(event.round, event.rank): event.at for event in known.averaged}
    members = {order.round: order.members for order in known.reduces}
    for event in known.reduced:
        ranks = [rank for rank in members.get(event.round, ()) if (event.round, rank) in size]
        laid = {(event.round, rank): event.at - event.seconds for rank in ranks}
        for what, begun, ended, messages in (("snapshots", ordered, laid, 2), ("averages", sent, done, answers)):
            for took, least in _crossed(links, event.round, ranks, begun, ended, size, messages):
                if took < nearly * least - CLOCK:
                    return (
                        f"the {what} of round {event.round} took {took * 1e3:.3g} ms, but over these links need "
                        f"{least * 1e3:.3g} ms (cluster.links)"
                    )
    return ""


Times = Mapping[tuple[int, int], float]
"""(round, rank) -> seconds."""


def _first(known: Records, kind: type[Any]) -> Times:
    """Return when each rank's order of a round was sent."""
    times = dict[tuple[int, int], float]()
    for at, order in known.work:
        if isinstance(order, kind):
            times.setdefault((order.round, order.rank), at)
    return times


def _crossed(
    links: WrittenLinks,
    number: int,
    ranks: list[int],
    begun: Times,
    ended: Times,
    size: Mapping[tuple[int, int], int],
    messages: int,
) -> Iterator[tuple[float, float]]:
    """Yield (seconds that it took, least seconds) of each rank, and of all ranks on each shared link."""
    shared: list[tuple[WrittenLink, tuple[int, int]]] = []
    for rank in ranks:
        link, key = links.between(0, rank) if rank else None, (number, rank)
        if link is None or key not in begun or key not in ended:
            continue
        yield ended[key] - begun[key], messages * (link.latency - link.jitter) + size[key] / link.rate
        if link.shared:
            shared.append((link, key))
    for link, keys in grouped(shared).items():
        took = max(ended[key] for key in keys) - min(begun[key] for key in keys)
        yield took, messages * (link.latency - link.jitter) + sum(size[key] for key in keys) / link.rate
