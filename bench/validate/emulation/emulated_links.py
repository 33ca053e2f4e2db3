"""Averages over emulated links take at least the time that the links need. The bound shares no code with the engine.
Pure."""

from __future__ import annotations

from typing import Any

from bench.base.grouping import grouped
from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from ddp.backends import BACKENDS, SyncKind
from ddp.core.network.links import RING, Links, parse
from ddp.core.policies import meets_every_step

NEARLY = 0.95
"""Fraction of the least time below which an average is too fast."""


def quicker_than_links(m: Metrics, known: Records, config: dict[str, Any]) -> str:
    """Name the average that was faster than its links allow; empty: none. The fastest rank's time counts, as it waited
    for none."""
    words = group_of(config, "cluster").get("links")
    if not words or m.engine not in ("elche", "virtual") or meets_every_step(m.policy):
        return ""
    if m.engine == "virtual" and not any(end.elapsed for end in known.ends):
        return ""  # an earlier version delayed only a part of the bytes
    links, backend = parse(words), BACKENDS.get(m.backend or "")
    if links is None or backend is None or SyncKind.COLLECTIVE not in backend.sync:
        return ""
    rounds = grouped((event.round, event) for event in known.averaged)
    for number, events in rounds.items():
        took, size = min(event.seconds for event in events), min(event.bytes for event in events)
        least = least_s(links, sorted(event.rank for event in events), size)
        if len(events) == m.world_size and took < NEARLY * least:
            return (
                f"the average of round {number} took {took * 1e3:.3g} ms, but {size} bytes over these links need "
                f"{least * 1e3:.3g} ms (cluster.links)"
            )
    return ""


def least_s(links: Links, ranks: list[int], size: int) -> float:
    """Return the least seconds of an all-reduce of `size` bytes.

    A ring needs 2(n-1) messages of size/n in sequence. Trees and halving-doubling need 2 log2(n) messages, and move
    2(n-1)/n of the bytes. Jitter is taken at its best.
    """
    count = len(ranks)
    if links.algorithm == RING:
        pairs = [(rank, ranks[(place + 1) % count]) for place, rank in enumerate(ranks)]
    else:
        pairs = [(a, b) for a in ranks for b in ranks if a < b]
    places = [links.between(a, b) for a, b in pairs]
    if count < 2 or (links.algorithm != RING and min(places) < 0):
        return 0.0
    rules = [links.rules[place].link for place in places if place >= 0]
    messages = 2 * (count - 1) if links.algorithm == RING else 2 * (count.bit_length() - 1)
    moved = 2 * (count - 1) / count * size
    delays = [messages * (link.latency_s - link.jitter_s) for link in rules]
    moves = [moved / link.bandwidth for link in rules]
    if links.algorithm == RING:  # each message waits for the slowest of its round
        return max(map(sum, zip(delays, moves, strict=True)), default=0.0)
    return min(delays) + min(moves)
