"""Packs the spans of a trace into columns of small numbers, one or two bytes each, as text for a page.

A column is a sequence of LEB128 varints; differences that may be negative are zigzagged. Begins are stored as
differences from the span before. `bench/timeline/page/data.js` unpacks them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.timeline.chrome_trace import Lane, Span

Numbers = NDArray[np.int64]
FINE = 50_000
"""Most spans for ticks of 100 ns; with more, a tick is a microsecond."""
MOST = 130_000
"""Most spans that a page holds; of more, the longest are kept."""


def tick_ns(spans: int) -> int:
    """Return the nanoseconds of a tick on a page with this many spans."""
    return 100 if spans <= FINE else 1000


def varints(values: Numbers) -> bytes:
    """Encode numbers of 0 or more as LEB128: seven bits per byte, the lowest first, with the top bit set on all bytes
    but the last."""
    left = values.astype(np.uint64)
    sizes = np.maximum(np.ceil(np.log2(left.astype(np.float64) + 1) / 7).astype(np.int64), 1)
    ends = np.cumsum(sizes)
    out = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    at, here = ends - sizes, np.arange(left.size)
    while here.size:
        more = left[here] > 127
        out[at[here]] = (left[here] & np.uint64(127)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        left[here] >>= np.uint64(7)
        at[here] += 1
        here = here[more]
    return out.tobytes()


def zigzag(values: Numbers) -> Numbers:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..."""
    return np.where(values < 0, -2 * values - 1, 2 * values)


class Interner:
    """Numbers distinct values in order of first appearance."""

    def __init__(self) -> None:
        self.rows: dict[Any, int] = {}

    def number(self, row: Any) -> int:
        """Return the number of `row`, which is added if it is new."""
        return self.rows.setdefault(row, len(self.rows))


def longest(lanes: dict[Lane, list[Span]], most: int = MOST) -> tuple[dict[Lane, list[Span]], int]:
    """Return the lanes with the longest `most` spans, and the number of spans left out."""
    lengths = np.array([span[1] - span[0] for spans in lanes.values() for span in spans], np.int64)
    over = lengths.size - most
    if over <= 0:
        return lanes, 0
    kept = np.ones(lengths.size, bool)
    kept[np.argsort(lengths, kind="stable")[:over]] = False
    place = iter(kept)
    return {lane: [span for span in spans if next(place)] for lane, spans in lanes.items()}, over


def pack(spans: Sequence[Span], names: Interner, facts: Interner, tick: int) -> dict[str, Any]:
    """Pack the spans of a lane. `names` collects (name, category) pairs; `facts` all other arguments except `seq`, as
    JSON."""
    begins = np.array([span[0] for span in spans], np.int64) // tick
    ends = np.array([span[1] for span in spans], np.int64) // tick
    named = np.array([names.number((span[2], span[3])) for span in spans], np.int64)
    known = np.array([facts.number(_facts(span[4])) for span in spans], np.int64)
    # Collective numbers as zigzagged differences; -1 stands for none.
    seqs = np.array([-1 if span[4] is None else span[4].get("seq", -1) for span in spans], np.int64)
    columns = [np.diff(begins, prepend=0), ends - begins, named, known, zigzag(np.diff(seqs, prepend=-1))]
    return {"n": len(spans), "columns": [text(varints(column)) for column in columns]}


def _facts(args: dict[str, Any] | None) -> str:
    if not args:
        return ""
    rest = {key: value for key, value in args.items() if key != "seq"}
    return json.dumps(rest) if rest else ""


def text(data: bytes) -> str:
    """Encode as base64."""
    return base64.b64encode(data).decode("ascii")
