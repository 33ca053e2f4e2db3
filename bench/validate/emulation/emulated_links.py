"""Averages and collectives over emulated links take at least the time that the links need, and not much longer. In virtual
time they take exactly that, but for jitter and losses. The bounds share no code with the engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Any

from bench.base.grouping import grouped
from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.emulation.link_seconds import Needed
from bench.validate.emulation.link_words import WrittenLinks, read_links
from bench.validate.emulation.snapshot_links import quick_snapshot
from bench.validate.records.run_records import Collective, Records
from ddp.backends import BACKENDS, SyncKind
from ddp.core.policies import meets_every_step
from ddp.core.settings.faults import parse as parse_fault

NEARLY, EXACTLY = 0.95, 1 - 1e-6
"""Fraction of the least time below which an average is too fast, by a machine's clock and in virtual time."""
SURELY = 6.0
"""Standard deviations by which jitter and losses are never below their mean: a probability of 2e-8."""
WIDE, ALONE_S = 8, 0.001
"""Bytes of a number in an average, which is followed by its weight, and least seconds of a collective in virtual time."""
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
    links = read_links(words)
    if not links.links:
        return ""
    nearly = EXACTLY if m.engine == "virtual" else NEARLY
    return (
        _quick_average(m, known, links, nearly)
        or _quick_collective(m, known, links, nearly)
        or quick_snapshot(m, known, links, nearly)
        or _slow(m, known, links)
    )


def _quick_collective(m: Metrics, known: Records, links: WrittenLinks, nearly: float) -> str:
    """Name the collective of all ranks that ended too early after the last rank began, or say that all together did."""
    count, whole, mean, variance = 0, 0.0, 0.0, 0.0
    for took, needed, size in _took(m, [*known.collectives.values(), *known.hidden.values()], links):
        if took < nearly * needed.least:
            return (
                f"a collective took {took * 1e3:.3g} ms, but {size} bytes over these links need {needed.least * 1e3:.3g} ms "
                "(cluster.links)"
            )
        count, whole = count + 1, whole + took
        mean, variance = mean + needed.mean, variance + needed.variance
    if whole < nearly * (mean - SURELY * sqrt(variance)):
        return (
            f"{count} collectives took {whole:.4g} s, but with their jitter and losses need {mean:.4g} s, at least "
            f"{mean - SURELY * sqrt(variance):.4g} s (cluster.links)"
        )
    return ""


def _slow(m: Metrics, known: Records, links: WrittenLinks) -> str:
    """Say that even the quickest collective was too slow; in virtual time, that an average was. Only data of one type is
    judged."""
    alike = len({group.dtype for group in known.groups}) == 1
    if not alike or m.backend != "nccl" or any(parse_fault(each).kind == "link" for each in m.scripted_faults):
        return ""
    every = list(_took(m, known.collectives.values(), links))
    whole = WIDE * (sum(group.elements for group in known.groups) + 1)  # bytes of an average that is one collective
    for took, needed, size in every if m.engine == "virtual" else ():
        if size == whole and took * EXACTLY > max(needed.most, ALONE_S):
            return (
                f"a collective took {took * 1e3:.3g} ms, but {size} bytes over these links need {needed.most * 1e3:.3g} ms "
                "at most (cluster.links)"
            )
    each = [
        (took - m.world_size * (CLOCK + size / COPIED) - TIMES * needed.most, took, needed.most)
        for took, needed, size in every
        if needed.least > m.world_size * CLOCK
    ]
    over, took, most = min(each, default=(0.0, 0.0, 0.0))
    if len(each) < FEW or over <= 0:
        return ""
    return (
        f"each of {len(each)} collectives was too slow: one took {took * 1e3:.3g} ms, where these links need "
        f"{most * 1e3:.3g} ms (cluster.links)"
    )


def _took(
    m: Metrics, collectives: Iterable[list[Collective]], links: WrittenLinks
) -> Iterator[tuple[float, Needed, int]]:
    """Yield the seconds of each collective of all ranks since the last one began, what it needs, and the bytes."""
    part = 0.5 if m.backend in HALVES else 1.0
    for parts in collectives:
        ranks, size = tuple(sorted({rank for rank, *_ in parts})), min(size for *_, size in parts)
        if size and len(ranks) == len(parts) == m.world_size:
            took = min(end for _, _, end, _ in parts) - max(begin for _, begin, _, _ in parts)
            yield took, Needed.all_reduce(links, ranks, size, part), size


def _quick_average(m: Metrics, known: Records, links: WrittenLinks, nearly: float) -> str:
    """Name the average that was too quick. The fastest rank's time counts, as it waited for none."""
    backend = BACKENDS.get(m.backend or "")
    if meets_every_step(m.policy) or backend is None or SyncKind.COLLECTIVE not in backend.sync:
        return ""
    rounds = grouped((event.round, event) for event in known.averaged)
    for number, events in rounds.items():
        took, size = min(event.seconds for event in events), min(event.bytes for event in events)
        least = Needed.all_reduce(links, tuple(sorted(event.rank for event in events)), size).least
        if len(events) == m.world_size and took < nearly * least:
            return (
                f"the average of round {number} took {took * 1e3:.3g} ms, but {size} bytes over these links need "
                f"{least * 1e3:.3g} ms (cluster.links)"
            )
    return ""
