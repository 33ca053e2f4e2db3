"""`timeline.html`: the timeline as one self-contained page, which needs no network. `page/` has its parts.

All data of a run is in one block of JSON in which no tag can begin; the scripts show it only as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from bench.results.analysis.idle import LEAST_S, Gap, by_cause
from bench.timeline.about import Named
from bench.timeline.chrome_trace import Trace
from bench.timeline.lanes import CATEGORIES, cause
from bench.timeline.packed import Interner, longest, pack, text, tick_ns, varints
from ddp.core.errors import encodable

PARTS = Path(__file__).with_name("page")
SCRIPTS = ("data.js", "draw.js", "view.js", "table.js")
GAPS = 2000
"""Most idle gaps that the page lists, the longest first."""
POINTS = 4000
"""Most points of a counter; beyond, only every second, third, ... point is shown."""


def page(trace: Trace, spec: Named, idle: Sequence[Gap]) -> str:
    """Return the page of `trace`, with the idle gaps of its run."""
    body = json.dumps(content(trace, spec, idle), separators=(",", ":"), ensure_ascii=False)
    for sign, spelt in (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        body = body.replace(sign, spelt)
    return _template().render(
        title=f"{spec.model} {spec.mode} {spec.run_id}",
        style=_part("page.css"),
        scripts=[_part(name) for name in SCRIPTS],
        data=encodable(body),
    )


def content(trace: Trace, spec: Named, idle: Sequence[Gap]) -> dict[str, Any]:
    """Return the content of the page, as `page/data.js` reads it. Times are in ticks of `tick_ns` nanoseconds since
    launch."""
    everything = trace.lanes()
    lanes, left_out = longest(everything)
    tick = tick_ns(sum(map(len, lanes.values())))
    names, facts = Interner(), Interner()
    processes = []
    used = {pid for pid, _ in lanes} | {pid for pid, _ in trace.counters} | trace.processes.keys()
    for pid in sorted(used):
        name, tids = trace.processes.get(pid, (f"process {pid}", {}))
        shown = [
            {"name": tids.get(tid, f"lane {tid}"), **pack(spans, names, facts, tick)}
            for (owner, tid), spans in lanes.items()
            if owner == pid and spans
        ]
        counters = [_counter(key, each, tick) for (owner, key), each in trace.counters.items() if owner == pid]
        processes.append({"pid": pid, "name": name, "lanes": shown, "counters": counters})
    ends = [span[1] for spans in everything.values() for span in spans]
    return {
        "run": {"model": spec.model, "mode": spec.mode, "id": spec.run_id, "cell": spec.config_hash},
        "ranks": spec.world_size,
        "started": trace.about.get("started"),
        "hosts": trace.about.get("hosts", 1),
        "clock_error_us": trace.about.get("clock_error_us", 0),
        "tick_ns": tick,
        "end": max([*ends, *(mark[0] for mark in trace.marks)], default=0) // tick,
        "spans": sum(map(len, lanes.values())),
        "left_out": left_out,
        "names": [list(pair) for pair in names.rows],
        "facts": list(facts.rows),
        "categories": [name for name in CATEGORIES if any(name == category for _, category in names.rows)],
        "processes": processes,
        "marks": [[at // tick, pid, name, args] for at, pid, _, name, args in sorted(trace.marks, key=lambda m: m[:2])],
        **_idle(trace, idle, tick),
    }


def _counter(name: str, values: list[tuple[int, float]], tick: int) -> dict[str, Any]:
    values = sorted(values)
    step = -(-len(values) // POINTS)
    if step > 1:
        values = [*values[:-1:step], values[-1]]
    times = np.array([at for at, _ in values], np.int64) // tick
    return {
        "name": name,
        "at": text(varints(np.diff(times, prepend=0))),
        "values": [float(f"{v:.6g}") for _, v in values],
    }


def _idle(trace: Trace, idle: Sequence[Gap], tick: int) -> dict[str, Any]:
    long = sorted((gap for gap in idle if gap.seconds >= LEAST_S), key=lambda gap: -gap.seconds)
    causes = Interner()
    rows = [
        [gap.rank, trace.ns(gap.start) // tick, round(gap.seconds * 1e9) // tick, causes.number(cause(gap))]
        for gap in long[:GAPS]
    ]
    totals = [
        (row["rank"], row["cause"], row["by"], row["count"], round(row["seconds"], 6), round(row["longest_s"], 6))
        for row in by_cause(list(idle))
    ]
    return {"gaps": rows, "gaps_in_all": len(long), "causes": list(causes.rows), "sums": totals}


@cache
def _template() -> Template:
    loader = FileSystemLoader(PARTS)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")


@cache
def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")
