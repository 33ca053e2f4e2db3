"""Averages and collectives over emulated links take at least the time that the links need, and not much longer. The
bound shares no code with the engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bench.base.grouping import grouped
from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.records.run_records import Collective, Records
from ddp.backends import BACKENDS, SyncKind
from ddp.core.network.links import RING, Links, parse
from ddp.core.policies import meets_every_step
from ddp.core.settings.faults import parse as parse_fault

NEARLY = 0.95
"""Fraction of the least time below which an average is too fast."""
HALVES = ("zero1", "zero2", "zero3")
"""Backends with collectives of half an all-reduce."""
FEW, TIMES = 5, 2.0
"""Least number of collectives of which the quickest must not be too slow, and the factor that it may take."""
CLOCK, COPIED = 0.02, 1e8
"""Seconds, and bytes per second, that each rank of a busy machine may need for a collective itself."""


def other_than_links(m: Metrics, known: Records, config: dict[str, Any]) -> str:
    """Name the average or collective that was faster than its links allow, or say that all were too slow; empty: none."""
    words = group_of(config, "cluster").get("links")
    if not words or m.engine not in ("elche", "virtual"):
        return ""
    if m.engine == "virtual" and not any(end.elapsed for end in known.ends):
        return ""  # an earlier version delayed only a part of the bytes
    links = parse(words)
    if links is None:
        return ""
    return _quick_average(m, known, links) or _quick_collective(m, known, links) or _slow(m, known, links)


def _quick_collective(m: Metrics, known: Records, links: Links) -> str:
    """Name the collective of all ranks that ended too early after the last rank began."""
    part = 0.5 if m.backend in HALVES else 1.0
    for took, least, size in _took(m, [*known.collectives.values(), *known.hidden.values()], links):
        if took < NEARLY * part * least:
            return (
                f"a collective took {took * 1e3:.3g} ms, but {size} bytes over these links need {part * least * 1e3:.3g} ms "
                "(cluster.links)"
            )
    return ""


def _slow(m: Metrics, known: Records, links: Links) -> str:
    """Say that even the quickest collective was too slow. Only plain slow links and data of one type are judged."""
    plain = links.algorithm == RING and not any(rule.link.shared or rule.link.loss for rule in links.rules)
    alike = len({group.dtype for group in known.groups}) == 1
    if (
        not plain
        or not alike
        or m.backend != "nccl"
        or any(parse_fault(each).kind == "link" for each in m.scripted_faults)
    ):
        return ""
    jitter = 4 * (m.world_size - 1) * max(rule.link.jitter_s for rule in links.rules)
    each = [
        (took - m.world_size * (CLOCK + size / COPIED) - TIMES * (least + jitter), took, least)
        for took, least, size in _took(m, known.collectives.values(), links)
        if least > m.world_size * CLOCK
    ]
    over, took, least = min(each, default=(0.0, 0.0, 0.0))
    if len(each) < FEW or over <= 0:
        return ""
    return (
        f"each of {len(each)} collectives was too slow: one took {took * 1e3:.3g} ms, where these links need "
        f"{least * 1e3:.3g} ms (cluster.links)"
    )


def _took(m: Metrics, collectives: Iterable[list[Collective]], links: Links) -> Iterator[tuple[float, float, int]]:
    """Yield the seconds of each collective of all ranks since the last one began, the least seconds of an all-reduce, and
    the bytes."""
    for parts in collectives:
        ranks, size = sorted({rank for rank, *_ in parts}), min(size for *_, size in parts)
        if size and len(ranks) == len(parts) == m.world_size:
            took = min(end for _, _, end, _ in parts) - max(begin for _, begin, _, _ in parts)
            yield took, least_s(links, ranks, size), size


def _quick_average(m: Metrics, known: Records, links: Links) -> str:
    """Name the average that was too quick. The fastest rank's time counts, as it waited for none."""
    backend = BACKENDS.get(m.backend or "")
    if meets_every_step(m.policy) or backend is None or SyncKind.COLLECTIVE not in backend.sync:
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
