from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.analysis.idle import by_cause, gaps
from bench.results.analysis.stream import sort
from bench.timeline import make_trace, write_timeline
from bench.timeline.chrome_trace import Trace
from ddp.core.messages import events
from ddp.core.messages.commands import Drop
from ddp.core.messages.join_events import Joined
from ddp.process.codec import Record
from tests.bench.streams import LAUNCHED, MODES, make_metrics, make_records, make_spec
from tests.bench.timeline.trace_rules import body_of, violations


@pytest.mark.parametrize("mode", MODES)
def test_traces_of_every_mode_keep_the_rules(mode: str) -> None:
    spec = make_spec(mode)
    records = make_records(spec, step_s=(0.01, 0.014)[: spec.world_size])
    trace = body_of(make_trace(sort(records, LAUNCHED), spec, LAUNCHED))
    assert violations(trace) == []
    phases = {event["ph"] for event in trace["traceEvents"]}
    assert {"M", "X", "C"} <= phases
    assert ("f" in phases) == (spec.world_size > 1)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert len(names) == spec.world_size + 1


def test_arrows_tie_the_ranks_of_a_round_that_blocks_nobody() -> None:
    at = LAUNCHED
    records: list[Record] = [events.Ready(at, rank, 64, 10, "d", "cpu", "memory") for rank in range(3)]
    wanted: dict[int, list[int]] = {0: [], 1: []}
    for number in wanted:
        for kind in ("snapshot", "average"):
            for rank in range(3):
                at += 0.01
                lost = (number, kind, rank) == (1, "snapshot", 2)  # its slice was not written out any more
                records += [] if lost else [events.Slice(at, rank, "copy", 0.004)]
                wanted[number] += [] if lost else [rank]
                done = at + 0.0041
                if kind == "snapshot":
                    records.append(events.Snapshot(done, rank, number, 5, 80))
                else:
                    records.append(events.Averaged(done, rank, number, 5, 80, 0.004, 100, 0.1))
    trace = body_of(make_trace(sort(records, LAUNCHED), make_spec("cpu_async", 3), LAUNCHED))
    assert violations(trace) == []
    drawn: dict[int, list[int]] = {}
    for event in sorted((e for e in trace["traceEvents"] if e.get("cat") == "flow"), key=lambda event: event["ts"]):
        assert event["name"] == "round"
        drawn.setdefault(event["id"], []).append(event["pid"])
    assert drawn == wanted


def test_files_are_written(tmp_path: Path) -> None:
    spec = make_spec("nccl_cadence", speeds=(1.0, 0.4))
    records = make_records(spec)
    write_timeline(tmp_path, records, spec, LAUNCHED)
    assert violations(json.loads((tmp_path / "timeline.json").read_text())) == []
    table = pd.read_csv(tmp_path / "timeline.csv")
    assert set(table.columns) == {"rank", "kind", "start_s", "seconds", "waited_s", "seq", "bytes"}
    assert (table["waited_s"] <= table["seconds"] + 1e-6).all()
    picture = matplotlib.image.imread(tmp_path / "timeline.png")
    assert picture.shape[1] > 1000
    assert picture.std() > 0.1
    first = (tmp_path / "timeline.png").read_bytes()
    write_timeline(tmp_path, records, spec, LAUNCHED)
    assert (tmp_path / "timeline.png").read_bytes() == first


def test_a_run_of_which_nothing_was_measured_has_a_timeline(tmp_path: Path) -> None:
    write_timeline(tmp_path, [], make_spec(), LAUNCHED)
    assert violations(json.loads((tmp_path / "timeline.json").read_text())) == []


times = st.floats(-5, 10)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), times, st.floats(-3, 3)), max_size=40),
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.lists(st.tuples(st.integers(0, 2), times), max_size=5)),
        max_size=8,
    ),
    st.floats(),
    st.text(),
)
def test_the_writer_keeps_the_rules_whatever_is_put_in(slices, flows, value, name) -> None:
    trace = Trace(0.0, {"run_id": name})
    trace.process(0, name, {0: name})
    for pid, tid, start, seconds in slices:
        trace.slice(pid, tid, name, start, start + seconds)
        trace.counter(pid, name, start, value)
        trace.mark(pid, tid, name, start, {"text": name})
    for tid, number, points in flows:
        trace.flow(tid, "flow", number, points)
    body = body_of(trace)
    assert violations(body) == []
    assert sum(event["ph"] == "X" for event in body["traceEvents"]) == len(slices)


def test_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="number"):
        Trace(0.0, {}).slice(0, 0, "x", float("nan"), 1.0)


def test_operations_of_torch_are_lanes_beneath_their_rank(tmp_path: Path) -> None:
    spec = make_spec("nccl_cadence")
    rows = [["aten::linear", 101.5, 0.01, 1], ["aten::addmm", 101.502, 0.005, 1], ["AddmmBackward0", 101.51, 0.01, 7]]
    (tmp_path / "torch-1.json").write_text(json.dumps(rows))
    (tmp_path / "torch-0.json").write_text(json.dumps(rows)[:-9])
    write_timeline(tmp_path, make_records(spec), spec, LAUNCHED, picture=False)
    body = json.loads((tmp_path / "timeline.json").read_text())
    assert violations(body) == []
    found = [event for event in body["traceEvents"] if event.get("cat") == "torch"]
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in found] == [
        (1, "aten::linear", 1.5e6, 10_000.0),
        (1, "aten::addmm", 1.502e6, 5000.0),
        (1, "AddmmBackward0", 1.51e6, 10_000.0),
    ]
    lanes = {e["args"]["name"]: e["tid"] for e in body["traceEvents"] if e["name"] == "thread_name" and e["pid"] == 1}
    assert lanes["torch"] == found[0]["tid"] != found[2]["tid"] == lanes["torch 2"]


@pytest.mark.parametrize("mode", MODES)
def test_idle_gaps_add_up_to_what_is_neither_work_nor_communication(mode: str) -> None:
    spec = make_spec(mode)
    records = make_records(spec, step_s=(0.01, 0.014)[: spec.world_size])
    found = gaps(sort(records, LAUNCHED))
    metrics = make_metrics(spec, records)
    for rank, row in enumerate(metrics.breakdown):
        idle = sum(gap.seconds for gap in found if gap.rank == rank)
        assert idle == pytest.approx((row.wait + row.other) * metrics.time_s.rank_wall[rank], abs=1e-6)
    if mode == "nccl_cadence":
        late = [gap for gap in found if gap.cause == "late rank"]
        assert {(gap.rank, gap.by, gap.during) for gap in late} == {(0, 1, "compute")}
    assert sum(row["seconds"] for row in by_cause(found)) == pytest.approx(sum(gap.seconds for gap in found))


def _slice(ts: float, dur: float, name: str = "x") -> dict[str, object]:
    return {"ph": "X", "pid": 0, "tid": 0, "name": name, "ts": ts, "dur": dur}


def _trace(*timed: dict[str, object]) -> dict[str, object]:
    named = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "p"}},
        {"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "t"}},
    ]
    return {"traceEvents": [*named, *timed], "displayTimeUnit": "ms", "otherData": {}}


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        (_trace(_slice(0, 10), _slice(5, 10)), "does not nest"),
        (_trace(_slice(5, 1), _slice(0, 1)), "order"),
        (_trace(_slice(-5, 1)), "negative"),
        (_trace({**_slice(0, 1), "pid": 7}), "process 7 has no name"),
        (_trace({**_slice(0, 1), "tid": 3}), "lane (0, 3) has no name"),
        (_trace({"ph": "s", "pid": 0, "tid": 0, "name": "ar", "id": 1, "ts": 0}), "flow ar 1"),
        ({"traceEvents": []}, "displayTimeUnit"),
    ],
)
def test_violations_are_found(trace: dict[str, object], complaint: str) -> None:
    assert any(complaint in line for line in violations(trace))
    assert violations(_trace(_slice(0, 10), _slice(2, 8), _slice(10, 1))) == []


def _ready(rank: int, host: int = 0, error_s: float = 0.0) -> events.Ready:
    return events.Ready(LAUNCHED + 1, rank, 64, 10, "d", "cpu", "gloo", host=host, clock_error_s=error_s)


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ([], ("CLOCK_MONOTONIC, one host", 1, 0)),
        ([_ready(0), _ready(1)], ("CLOCK_MONOTONIC, one host", 1, 0)),
        (
            [_ready(0), _ready(1, 1, 0.00012), _ready(2, 1, 0.0002), _ready(3, 2, 1e-9)],
            ("CLOCK_MONOTONIC, 3 hosts, compared at the start", 3, 200),
        ),
        ([_ready(0), _ready(1, 1, math.inf)], ("CLOCK_MONOTONIC, 2 hosts, compared at the start", 2, 0)),
    ],
)
def test_the_header_says_how_far_clocks_may_be_apart(ready: list[Record], expected: tuple[str, int, int]) -> None:
    spec = make_spec(world_size=4)
    about = body_of(make_trace(sort(ready, LAUNCHED), spec, LAUNCHED))["otherData"]
    assert (about["clock"], about["hosts"], about["clock_error_us"]) == expected


def test_speeds_and_losses_hold_from_the_beginning_of_what_they_are_of() -> None:
    """They were drawn one report late, the last one to the end of the run, and through the outage of a rank."""
    records: list[Record] = [events.Ready(LAUNCHED, 0, 64, 10, "d", "cpu", "memory")]
    for seconds, samples in ((1.0, 50), (2.0, 100)):
        records.append(events.Progress(LAUNCHED + seconds, 0, 0, 1, samples, 1.0, samples * 0.5, 0.1))
    records += [events.Lost(LAUNCHED + 2.5, 0, "gone"), Drop(0, "gone"), Joined(LAUNCHED + 4.0, 0, 5)]
    records.append(events.Progress(LAUNCHED + 6.0, 0, 0, 1, 50, 1.0, 10.0, 0.1))
    trace = make_trace(sort(records, LAUNCHED), make_spec("nccl_cadence"), LAUNCHED)
    shown = {name: [(when / 1e9, value) for when, value in trace.counters[0, name]] for name in ("samples/s", "loss")}
    assert shown == {
        "samples/s": [(0.0, 50.0), (1.0, 100.0), (2.0, 0.0), (4.0, 25.0), (6.0, 0.0)],
        "loss": [(0.0, 0.5), (1.0, 0.5), (4.0, 0.2)],
    }


def test_processor_and_memory_of_gpus_are_counters() -> None:
    """What a rank used between two measurements holds from the first of them on; without a GPU nothing is said of one."""
    spec = make_spec("solo")
    at = LAUNCHED + 1
    used = [
        (0.0, 1.0),
        (0.1, 1.05),
        (0.1001, 1.06),
        (0.3, 1.45),
        (0.4, 0.2),
        (0.5, 0.3),
    ]  # the fifth is another process
    memory: list[Record] = [events.Memory(at + since, 0, 10**6, cpu) for since, cpu in used]
    memory += [events.Memory(at + 0.6, 0, 10**6), events.Memory(at + 0.7, 0, 10**6, 0.5, 2 * 10**6, 0.75)]
    trace = make_trace(sort([_ready(0), *memory], LAUNCHED), spec, LAUNCHED)
    busy = [(round(when / 1e9, 4), round(value, 4)) for when, value in trace.counters[0, "cores busy"]]
    assert busy == [(1.0, 0.5), (1.1, 2.0), (1.3, 0.0), (1.4, 1.0), (1.5, 1.0)]
    assert [value for _, value in trace.counters[0, "GPU memory MB"]] == [2.0]
    assert [value for _, value in trace.counters[0, "GPU busy"]] == [0.75]
    assert len(trace.counters[0, "memory MB"]) == len(memory)
    assert violations(body_of(trace)) == []
