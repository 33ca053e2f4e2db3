"""Chrome trace events: a builder that keeps the rules of the format, and `violations`, which checks any trace for them.

Complete slices (X) of a (pid, tid) must nest, or viewers drop them; flows need their ends inside slices; every process and
lane has a name. Knows nothing of training. Format: the Trace Event Format document, as Perfetto reads it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

Json = dict[str, Any]


class Trace:
    """Collects events; `zero` is the time that becomes 0, seconds."""

    def __init__(self, zero: float, about: Mapping[str, Any]) -> None:
        self._zero = zero
        self._about = dict(about)
        self._meta: list[Json] = []
        self._slices: dict[tuple[int, int], list[Json]] = defaultdict(list)
        self._points: list[Json] = []

    def _ns(self, time: float) -> int:
        return max(round((time - self._zero) * 1e9), 0)

    def process(self, pid: int, name: str, lanes: Mapping[int, str]) -> None:
        """Name a process, sorted by its number, and its lanes."""
        self._meta.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}})
        self._meta.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}})
        for tid, lane in lanes.items():
            self._meta.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": lane}})
            order = {"sort_index": tid}
            self._meta.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": order})

    def slice(self, pid: int, tid: int, name: str, start: float, stop: float, args: Json | None = None) -> None:
        """A stretch of time on a lane, seconds."""
        begin = self._ns(start)
        event: Json = {
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "name": name,
            "ts": begin,
            "dur": max(self._ns(stop) - begin, 0),
        }
        self._slices[pid, tid].append(event | {"args": args} if args else event)

    def counter(self, pid: int, name: str, at: float, value: float) -> None:
        """A value that holds from `at`."""
        self._points.append({"ph": "C", "pid": pid, "name": name, "ts": self._ns(at), "args": {name: value}})

    def mark(self, pid: int, tid: int, name: str, at: float, args: Json) -> None:
        """An instant."""
        self._points.append(
            {"ph": "i", "pid": pid, "tid": tid, "s": "p", "name": name, "ts": self._ns(at), "args": args}
        )

    def flow(self, tid: int, name: str, number: int, points: list[tuple[int, float]]) -> None:
        """An arrow through (pid, time) points, in the order of their times; each time lies inside a slice on lane `tid`."""
        points = sorted(points, key=lambda point: point[1])
        for index, (pid, at) in enumerate(points):
            phase = "s" if index == 0 else "f" if index == len(points) - 1 else "t"
            event: Json = {"ph": phase, "pid": pid, "tid": tid, "name": name, "cat": "flow", "id": number}
            event["ts"] = self._ns(at)
            self._points.append(event | {"bp": "e"} if phase != "s" else event)

    def to_dict(self) -> Json:
        """The trace: names first, then events by time; slices on a lane are cut where they would not nest."""
        events = [event for lane in self._slices.values() for event in _nest(lane)] + self._points
        events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
        timed = [
            event | {"ts": event["ts"] / 1e3} | ({"dur": event["dur"] / 1e3} if "dur" in event else {})
            for event in events
        ]
        return {"traceEvents": self._meta + timed, "displayTimeUnit": "ms", "otherData": self._about}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _nest(lane: list[Json]) -> list[Json]:
    """The events of a lane, by start; one that would outlast what it begins in (by rounding) ends with it."""
    open_ends: list[int] = []
    for event in sorted(lane, key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and open_ends[-1] <= event["ts"]:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        if open_ends:
            end = min(end, open_ends[-1])
        event["dur"] = end - event["ts"]
        open_ends.append(end)
    return lane


def violations(trace: Json) -> list[str]:
    """What is wrong with a trace: one line each; empty if viewers will show all of it."""
    events = trace.get("traceEvents", [])
    timed = [event for event in events if event["ph"] != "M"]
    found = [f"no {need}" for need in ("displayTimeUnit", "otherData") if need not in trace]
    found += [
        f"{e['name']}: time {e['ts']} or duration is negative" for e in timed if min(e["ts"], e.get("dur", 0)) < 0
    ]
    if any(b["ts"] < a["ts"] for a, b in pairwise(timed)):
        found.append("events are not in the order of their times")
    return found + _unnamed(events, timed) + _not_nested(timed) + _bad_flows(timed)


def _unnamed(events: list[Json], timed: list[Json]) -> list[str]:
    named = {(e["name"], e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    pids = {event["pid"] for event in timed}
    lanes = {(event["pid"], event["tid"]) for event in timed if "tid" in event}
    found = [f"process {pid} has no name" for pid in sorted(pids) if ("process_name", pid, None) not in named]
    return found + [f"lane {lane} has no name" for lane in sorted(lanes) if ("thread_name", *lane) not in named]


def _not_nested(timed: list[Json]) -> list[str]:
    found: list[str] = []
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in timed:
        if event["ph"] != "X":
            continue
        start, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
        stack = stacks[event["pid"], event["tid"]]
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            found.append(f"{event['name']} at {event['ts']} does not nest on lane {event['pid'], event['tid']}")
        stack.append(end)
    return found


def _bad_flows(timed: list[Json]) -> list[str]:
    phases: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in timed:
        if event["ph"] in "stf":
            phases[event["name"], event["id"]].append(event["ph"])
    return [
        f"flow {name} {number} is {''.join(steps)}"
        for (name, number), steps in phases.items()
        if len(steps) < 2 or steps != ["s", *"t" * (len(steps) - 2), "f"]
    ]
