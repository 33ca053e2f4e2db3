"""Chrome trace events: `Trace` collects events and keeps the rules of the format for any input.

- Times become whole nanoseconds since a zero, never negative.
- Slices of a lane nest: one that would outlast the slice in which it begins is cut.
- A flow goes through at least two points inside slices, and has a unique number.
- Every process and lane has a name; events are sorted by time.

Knows nothing of training. Format: the Trace Event Format document, as Perfetto reads it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

Json = dict[str, Any]
Span = tuple[int, int, str, str, Json | None]
"""(begin, end, name, category, arguments); times in nanoseconds."""
Lane = tuple[int, int]
"""(pid, tid)."""
MOST_NS = 1 << 53
"""Largest exact number in JavaScript; as nanoseconds some hundred days."""


class Trace:
    """Collects events. `zero`: the time in seconds that becomes 0. Raises ValueError for a time that is NaN."""

    def __init__(self, zero: float, about: Mapping[str, Any]) -> None:
        self.zero = zero
        self.about = dict(about)
        self.processes: dict[int, tuple[str, dict[int, str]]] = {}
        """Process number -> (name, names of its lanes)."""
        self.counters: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
        self.marks: list[tuple[int, int, int, str, Json]] = []
        """(nanoseconds, pid, tid, name, arguments)."""
        self._slices: dict[Lane, list[Span]] = defaultdict(list)
        self._nested: dict[Lane, list[Span]] | None = None
        self._flows: list[tuple[int, str, int, list[tuple[int, int]]]] = []

    def ns(self, time: float) -> int:
        """Return `time` (seconds) as nanoseconds since zero. Raises ValueError for NaN."""
        since = (time - self.zero) * 1e9
        if math.isnan(since):
            raise ValueError("a time must be a number")
        return round(min(max(since, 0.0), MOST_NS))

    def process(self, pid: int, name: str, lanes: Mapping[int, str]) -> None:
        """Name a process and its lanes; viewers sort both by number."""
        self.processes[pid] = (name, dict(lanes))

    def slice(
        self, pid: int, tid: int, name: str, start: float, stop: float, args: Json | None = None, cat: str = ""
    ) -> None:
        """Add a slice to a lane; times in seconds."""
        self.add(pid, tid, [(self.ns(start), self.ns(stop), name, cat, args)])

    def add(self, pid: int, tid: int, spans: Iterable[Span]) -> None:
        """Add slices to a lane; times in nanoseconds since zero."""
        self._slices[pid, tid].extend(spans)
        self._nested = None

    def counter(self, pid: int, name: str, at: float, value: float) -> None:
        """Add a counter value that holds from `at`; values that are not finite are dropped."""
        if math.isfinite(value):
            self.counters[pid, name].append((self.ns(at), value))

    def mark(self, pid: int, tid: int, name: str, at: float, args: Json) -> None:
        """Add an instant event."""
        self.marks.append((self.ns(at), pid, tid, name, args))

    def flow(self, tid: int, name: str, number: int, points: Sequence[tuple[int, float]]) -> None:
        """Add an arrow through (pid, time) points on the lanes `tid`, in order of time."""
        self._flows.append((tid, name, number, sorted((self.ns(at), pid) for pid, at in points)))

    def lanes(self) -> dict[Lane, list[Span]]:
        """Return the nested slices of each lane, sorted by begin, enclosing slices first."""
        if self._nested is None:
            self._nested = {lane: nest(spans) for lane, spans in sorted(self._slices.items())}
        return self._nested

    def to_json(self) -> bytes:
        """Return the trace as JSON, one event per line: metadata, names, then events by time."""
        lanes = self.lanes()
        timed: list[tuple[int, int, _Event]] = []
        for (pid, tid), spans in lanes.items():
            timed += [
                (begin, begin - end, _SliceEvent(pid, tid, name, begin / 1e3, (end - begin) / 1e3, cat, args))
                for begin, end, name, cat, args in spans
            ]
        timed += self._points(lanes)
        timed.sort(key=itemgetter(0, 1))
        lines = _ENCODER.encode_lines([*self._names(lanes), *(event for _, _, event in timed)])
        about = json.dumps(self.about, allow_nan=False).encode()
        # Metadata comes first: a reader that needs only that reads one line, which even a torn file has.
        head = b'{"displayTimeUnit":"ms","otherData":%b,\n"traceEvents":[\n' % about
        return head + lines[:-1].replace(b"\n", b",\n") + b"\n]}\n"

    def _points(self, lanes: Mapping[Lane, list[Span]]) -> list[tuple[int, int, _Event]]:
        """Return counters, marks and flows, sorted behind slices of the same begin."""
        events: list[tuple[int, int, _Event]] = []
        for (pid, name), values in self.counters.items():
            events += [(at, 1, _Counter(pid, name, at / 1e3, {name: value})) for at, value in values]
        events += [(at, 1, _Mark(pid, tid, name, at / 1e3, args)) for at, pid, tid, name, args in self.marks]
        for tid, name, number, points in self.flows(lanes):
            phases = ["s", *"t" * (len(points) - 2), "f"]
            for (at, pid), phase in zip(points, phases, strict=True):
                flow = _Flow(phase, pid, tid, name, "flow", number, at / 1e3, "e" if phase == "f" else None)
                events.append((at, len(events) + 2, flow))  # keep the order of points at equal times
        return events

    def flows(self, lanes: Mapping[Lane, list[Span]]) -> list[tuple[int, str, int, list[tuple[int, int]]]]:
        """Return (lane, name, number, points) of the flows that can be drawn, each with a unique number."""
        crossed = {tid for tid, *_ in self._flows}
        outer = {lane: _outer(spans) for lane, spans in lanes.items() if lane[1] in crossed}
        taken: set[int] = set()
        drawn = []
        for tid, name, number, points in self._flows:
            inside = [(at, pid) for at, pid in points if _within(outer.get((pid, tid)), at)]
            if len(inside) > 1:
                while number in taken:
                    number += 1 << 32
                taken.add(number)
                drawn.append((tid, name, number, inside))
        return drawn

    def _names(self, lanes: Mapping[Lane, list[Span]]) -> list[Json]:
        named = {pid: (name, dict(tids)) for pid, (name, tids) in self.processes.items()}
        used = [*lanes, *((pid, tid) for _, pid, tid, _, _ in self.marks), *((pid, None) for pid, _ in self.counters)]
        for pid, tid in used:
            tids = named.setdefault(pid, (f"process {pid}", {}))[1]
            if tid is not None:
                tids.setdefault(tid, f"lane {tid}")
        rows: list[Json] = []
        for pid, (name, tids) in sorted(named.items()):
            rows += _named("process", {"pid": pid}, name, pid)
            for tid, lane in tids.items():
                rows += _named("thread", {"pid": pid, "tid": tid}, lane, tid)
        return rows


def _named(kind: str, place: Json, name: str, order: int) -> list[Json]:
    event = {"ph": "M", **place}
    return [
        {**event, "name": f"{kind}_name", "args": {"name": name}},
        {**event, "name": f"{kind}_sort_index", "args": {"sort_index": order}},
    ]


# The events with their keys in the format. They are very many, so they are structs, encoded all at once.
class _SliceEvent(msgspec.Struct, tag_field="ph", tag="X", omit_defaults=True, gc=False):
    pid: int
    tid: int
    name: str
    ts: float
    dur: float
    cat: str = ""
    args: Json | None = None


class _Counter(msgspec.Struct, tag_field="ph", tag="C", gc=False):
    pid: int
    name: str
    ts: float
    args: dict[str, float]


class _Mark(msgspec.Struct, tag_field="ph", tag="i", gc=False):
    pid: int
    tid: int
    name: str
    ts: float
    args: Json
    s: str = "p"


class _Flow(msgspec.Struct, omit_defaults=True, gc=False):
    ph: str
    pid: int
    tid: int
    name: str
    cat: str
    id: int
    ts: float
    bp: str | None = None


_Event = _SliceEvent | _Counter | _Mark | _Flow
_ENCODER = msgspec.json.Encoder()


def nest(spans: Sequence[Span]) -> list[Span]:
    """Sort spans by begin, longer ones first, and cut a span that would outlast the one in which it begins."""
    open_ends: list[int] = []
    nested: list[Span] = []
    for span in sorted(sorted(spans, key=itemgetter(1), reverse=True), key=itemgetter(0)):
        begin, end = span[0], span[1]
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        cut = open_ends[-1] if open_ends and open_ends[-1] < end else end if end > begin else begin
        open_ends.append(cut)
        nested.append(span if cut == end else (begin, cut, *span[2:]))
    return nested


def _outer(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Return begins and ends of the outermost spans."""
    begins, ends, last = [], [], 0
    for begin, end, *_ in spans:
        if begin >= last and end > begin:
            begins.append(begin)
            ends.append(end)
            last = end
    return begins, ends


def _within(outer: tuple[list[int], list[int]] | None, at: int) -> bool:
    if outer is None:
        return False
    index = bisect_right(outer[0], at) - 1
    return index >= 0 and at < outer[1][index]
