"""The rules of a Chrome trace, checked: what is wrong with one, in words.

Complete slices (X) of a (pid, tid) must nest, or viewers drop them; flows need their ends inside slices; every process and
lane has a name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

from bench.timeline.chrome_trace import Json, Trace


def body_of(trace: Trace) -> Json:
    """What `to_json` writes, as read."""
    body: Json = json.loads(trace.to_json())
    return body


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
    return found + _unnamed(events, timed) + _not_nested(timed) + _bad_flows(timed) + _bad_counters(timed)


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
        start, end = _extent(event)
        stack = stacks[event["pid"], event["tid"]]
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            found.append(f"{event['name']} at {event['ts']} does not nest on lane {event['pid'], event['tid']}")
        stack.append(end)
    return found


def _extent(event: Json) -> tuple[int, int]:
    """Begin and end, nanoseconds."""
    begin = round(event["ts"] * 1e3)
    return begin, begin + round(event["dur"] * 1e3)


def _bad_flows(timed: list[Json]) -> list[str]:
    flows: dict[tuple[str, int], list[Json]] = defaultdict(list)
    held: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in timed:
        if event["ph"] in "stf":
            flows[event["name"], event["id"]].append(event)
        elif event["ph"] == "X":
            held[event["pid"], event["tid"]].append(_extent(event))
    found = []
    for (name, number), points in flows.items():
        steps = "".join(point["ph"] for point in points)
        if len(steps) < 2 or steps != f"s{'t' * (len(steps) - 2)}f":
            found.append(f"flow {name} {number} is {steps}")
        found += [f"flow {name} {number} ends outside any slice" for point in points if not _held(held, point)]
    return found


def _held(held: dict[tuple[int, int], list[tuple[int, int]]], point: Json) -> bool:
    at = round(point["ts"] * 1e3)
    return any(begin <= at <= end for begin, end in held[point["pid"], point["tid"]])


def _bad_counters(timed: list[Json]) -> list[str]:
    def sound(values: Any) -> bool:
        return isinstance(values, dict) and all(type(value) in (int, float) for value in values.values())

    return [f"counter {e['name']} at {e['ts']} has no number" for e in timed if e["ph"] == "C" and not sound(e["args"])]
