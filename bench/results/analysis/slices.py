"""Slices of the ranks' time as columns. Computes only what follows from begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddp.core.messages.events import Slice

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]
EXPOSED = "exposed"
"""Kind of the part of a wait in which the rank's own collective, begun during the backward pass, is on the wire."""


def numbered(names: Sequence[str]) -> tuple[list[str], Places]:
    """Return the distinct names in order of appearance, and the index of each name among them."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return list(places), np.array([places[name] for name in names], np.int64)


@dataclass(frozen=True)
class Slices:
    """Slices of all ranks as columns, in the order recorded."""

    rank: NDArray[np.int64]
    kind: NDArray[np.str_]
    start: Floats
    """Seconds on the clock of the records."""
    stop: Floats
    seq: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @staticmethod
    def of(slices: Sequence[Slice]) -> Slices:
        """Return `slices` as columns."""
        names, codes = numbered([each.kind for each in slices])
        start = np.array([each.at for each in slices], np.float64)
        return Slices(
            rank=np.array([each.rank for each in slices], np.int64),
            kind=np.array(names, np.str_)[codes],
            start=start,
            stop=start + np.array([each.seconds for each in slices], np.float64),
            seq=np.array([each.seq for each in slices], np.int64),
            bytes=np.array([each.bytes for each in slices], np.int64),
        )

    def where(self, mask: Flags | slice) -> Slices:
        """Return the slices selected by a mask."""
        return Slices(*(getattr(self, field.name)[mask] for field in fields(self)))

    @cached_property
    def by_rank(self) -> dict[int, Places]:
        """Return rank -> indices of its slices, sorted by start."""
        order = np.lexsort((self.start, self.rank))
        ranks, first = np.unique(self.rank[order], return_index=True)
        return dict(zip(ranks.tolist(), np.split(order, first[1:]), strict=True)) if len(ranks) else {}

    def places(self, rank: int) -> Places:
        """Return the indices of the slices of `rank`, sorted by start."""
        return self.by_rank.get(rank, np.zeros(0, np.int64))

    @cached_property
    def kinds(self) -> tuple[list[str], Places]:
        """Return the distinct kinds, and the index of each slice's kind among them."""
        return numbered(self.kind.tolist())

    @cached_property
    def exchanges(self) -> tuple[Flags, Places, Floats]:
        """Return which slices are exchanges; the collective of each exchange; when its last rank arrived."""
        exchange = self.kind == "exchange"
        _, collective = np.unique(self.seq[exchange], return_inverse=True)
        arrival = np.full(int(collective.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(arrival, collective, self.start[exchange])
        return exchange, collective, arrival

    @cached_property
    def wire_start(self) -> Floats:
        """When the wire time of each slice begins: for an exchange when the last rank arrives, for other kinds at its
        own start. Never after its end."""
        exchange, collective, arrival = self.exchanges
        begins = self.start.copy()
        begins[exchange] = arrival[collective]
        return np.minimum(begins, self.stop)


def expose(slices: Slices, behind: Slices) -> Slices:
    """Return slices in which each wait for the rank's own collectives in `behind` is divided: while one of them is on the
    wire it is `EXPOSED`, with the number and the bytes of that collective; else it is a wait, for who comes late."""
    drains, parts = (slices.kind == "wait") & (slices.seq > 0), [slices]
    for rank, met in behind.by_rank.items() if drains.any() else ():
        mine = slices.places(rank)
        mine = mine[drains[mine]]
        met = met[np.argsort(behind.stop[met], kind="stable")]
        waited = np.searchsorted(slices.stop[mine], behind.stop[met])
        met, waited = met[waited < mine.size], waited[waited < mine.size]
        stop, left = behind.stop[met], slices.start[mine].copy()
        before = np.maximum(left[waited], np.append(-np.inf, stop[:-1]))
        begin = np.maximum(behind.wire_start[met], before)
        np.maximum.at(left, waited, stop)
        for kind, since, until, seq, size in (
            ("wait", before, np.minimum(begin, stop), behind.seq[met], 0),
            (EXPOSED, begin, stop, behind.seq[met], behind.bytes[met]),
            ("wait", left, slices.stop[mine], slices.seq[mine], 0),
        ):
            some = Slices(
                np.full(since.size, rank),
                np.full(since.size, kind),
                since,
                until,
                seq,
                np.broadcast_to(np.int64(size), since.shape),
            )
            parts.append(some.where(until > since))
    if len(parts) == 1:
        return slices
    parts[0] = slices.where(~drains | ~np.isin(slices.rank, list(behind.by_rank)))
    return Slices(*(np.concatenate([getattr(each, field.name) for each in parts]) for field in fields(Slices)))
