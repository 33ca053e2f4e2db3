"""Histories of failures: read from a trace, drawn at published rates, with spares."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from bench.goodput.outages import DAY_S, RATES, Outage, drawn, mean_gap, read_trace, replayed, with_spares

NAMES = ("node_id", "event_time", "event_type", "fault_type")
EVENTS = [
    ("a", 0.5, "fault_start", "fan"),
    ("a", 1.0, "fault_start", "cable"),
    ("a", 1.5, "fault_end", "fan"),
    ("b", 2.0, "fault_start", "fan"),
    ("a", 3.0, "fault_end", "cable"),
    ("c", 4.0, "fault_start", "fan"),
    ("c", 10.0, "fault_end", "fan"),
]


LATER = {"node_id": "a", "event_time": 2, "event_type": "fault_end"}


def written(folder: Path, events: object) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path, [dict(zip(NAMES, event, strict=True)) for event in EVENTS])


def test_faults_are_paired_with_their_ends(trace: Path) -> None:
    known = read_trace(trace, 5)
    assert known.outages == (("a", 0.5, 3.0), ("b", 2.0, 10.0), ("c", 4.0, 10.0))
    assert known.days == 10.0


def test_a_node_is_down_until_its_last_fault_is_repaired(tmp_path: Path) -> None:
    """It came back as the first one was, and the second one struck its spare."""
    faults = [("a", 0.1, 0.12, "gpu"), ("a", 0.11, 0.9, "nic"), ("a", 0.9, 1.0, "fan"), ("a", 2.0, 2.1, "gpu")]
    begins = [(node, begin, "fault_start", what) for node, begin, _, what in faults]
    ends = [(node, end, "fault_end", what) for node, _, end, what in faults]
    path = written(tmp_path, [dict(zip(NAMES, event, strict=True)) for event in begins + ends])
    known = read_trace(path, 5)
    assert known.outages == (("a", 0.1, 1.0), ("a", 2.0, 2.1))
    outages = replayed(known, 5, DAY_S, 1.0, 0)
    for spares, seconds in ((0, 0.9 * DAY_S), (1, 60.0)):
        assert [absent.stop - absent.start for absent in with_spares(outages, spares, 60.0 * spares)] == [
            pytest.approx(seconds)
        ]


def test_more_ranks_have_more_copies_and_longer_runs_begin_again(trace: Path) -> None:
    known = read_trace(trace, 5)
    once = replayed(known, 5, 10 * DAY_S, 1.0, 0)
    assert [outage.start / DAY_S for outage in once] == [0.5, 2.0, 4.0]
    assert len(replayed(known, 50, 10 * DAY_S, 1.0, 0)) == 30
    assert {outage.rank for outage in replayed(known, 50, 10 * DAY_S, 1.0, 0)} <= set(range(50))
    fast = replayed(known, 5, 2 * DAY_S, 10.0, 0)
    assert [outage.start / DAY_S for outage in fast[:4]] == pytest.approx([0.05, 0.2, 0.4, 1.05])
    assert fast == replayed(known, 5, 2 * DAY_S, 10.0, 0) != replayed(known, 5, 2 * DAY_S, 10.0, 1)


@pytest.mark.parametrize(
    ("events", "nodes", "complaint"),
    [
        ({}, 5, "no trace of faults"),
        ({"a": 1}, 5, "it has no list of events; it must be a JSON list of"),
        ([], 5, "no list of events"),
        ([1], 5, "no trace of faults: event 1; it must be a JSON list of"),
        ([{"node_id": "a"}], 5, r"event \{'node_id': 'a'\}; it must be a JSON list of .*event_time.*event_type"),
        ([{"node_id": "a", "event_time": 1, "event_type": "fault_end"}], 5, "no fault_start before its last event"),
        ([{"node_id": "a", "event_time": -1, "event_type": "fault_start"}], 5, "'event_time': -1.*DAYS from 0 up"),
        ([{"node_id": "a", "event_time": float("nan"), "event_type": "fault_start"}], 5, "nan.*DAYS from 0 up"),
        ([{"node_id": "a", "event_time": 1, "event_type": "fire"}], 5, "not fire"),
        ([{"node_id": name, "event_time": 1, "event_type": "fault_start"} for name in "ab"] + [LATER], 1, "--nodes"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, events: object, nodes: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_trace(written(tmp_path, events), nodes)


@pytest.mark.parametrize("text", ["[" * 100_000, f'[{{"event_time": 1{"0" * 400}}}]'])
def test_a_trace_that_cannot_be_decoded_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no trace of faults"):
        read_trace(tmp_path / "trace.json", 5)


def test_more_outages_than_fit_into_memory_are_refused(trace: Path) -> None:
    with pytest.raises(ValueError, match="smaller --compress"):
        drawn("llama3", 400, 10 * DAY_S, 1e9, 0)
    for compress in (1e9, float("inf")):
        with pytest.raises(ValueError, match="smaller --compress"):
            replayed(read_trace(trace, 5), 400, 10 * DAY_S, compress, 0)


@pytest.mark.parametrize("name", sorted(RATES))
def test_outages_are_drawn_at_their_rate(name: str) -> None:
    ranks, days = 1000, 2000.0
    outages = drawn(name, ranks, days * DAY_S, 1.0, 0)
    assert len(outages) == pytest.approx(RATES[name] * days, rel=0.1)
    assert mean_gap(outages, days * DAY_S) == pytest.approx(1000 * DAY_S / (RATES[name] * ranks), rel=0.1)
    starts = [outage.start for outage in outages]
    gaps = [later - sooner for sooner, later in pairwise(starts)]
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.76 if name == "bursts" else 1.0, abs=0.15)
    on_lemons = fmean(outage.rank < ranks / 10 for outage in outages)
    assert on_lemons == pytest.approx(1 / 3 if name == "bursts" else 0.1, abs=0.05)
    assert drawn(name, ranks, days * DAY_S, 10.0, 0)[0].start == pytest.approx(starts[0] / 10)


def test_no_rate_of_that_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'meta'"):
        drawn("mesa", 2, 1.0, 1.0, 0)


def test_spares_take_over_until_there_are_none() -> None:
    outages = [Outage(10, 100, 0), Outage(12, 20, 0), Outage(20, 70, 1), Outage(30, 50, 2), Outage(150, 160, 3)]
    assert with_spares(outages, 1, 5.0) == [
        Outage(10, 15, 0),  # what was to fail at 12 is being mended
        Outage(20, 75, 1),  # the next machine that is mended is its own
        Outage(30, 55, 2),
        Outage(150, 155, 3),
    ]
    assert with_spares(outages, 0, 0.0)[0] == Outage(10, 100, 0)


def test_a_fault_that_begins_with_the_last_event_strikes_nobody(tmp_path: Path) -> None:
    """It struck at second 0, and each time that the trace began again."""
    events = [("a", 1, "fault_start"), ("a", 2, "fault_end"), ("b", 10, "fault_start")]
    known = read_trace(written(tmp_path, [dict(zip(NAMES, event, strict=False)) for event in events]), 5)
    assert known.outages == (("a", 1.0, 2.0),)


def test_a_fault_without_length_may_be_written_end_first(tmp_path: Path) -> None:
    """Its node was down until the end of the trace."""
    events = [("a", 1, "fault_end"), ("a", 1, "fault_start"), ("b", 4, "fault_start"), ("b", 10, "fault_end")]
    known = read_trace(written(tmp_path, [dict(zip(NAMES, event, strict=False)) for event in events]), 5)
    assert known.outages == (("a", 1.0, 1.0), ("b", 4.0, 10.0))
