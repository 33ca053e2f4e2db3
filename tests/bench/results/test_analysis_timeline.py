"""Steps, stragglers, overlap and volume: by hand-made slices, and by whole synthetic runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.analysis.breakdown import breakdown, walls
from bench.results.analysis.explained import ORDERS, explained
from bench.results.analysis.idle import gaps
from bench.results.analysis.stream import sort, split
from bench.results.analysis.stretches import clipped, common, intersection, seconds, union
from bench.results.analysis.syncing import sync
from bench.results.analysis.timeline import arrivals, overlap, step_times, straggler_index
from bench.results.runfolder import find_runs
from bench.results.schema import SCHEMA_VERSION
from bench.validate.records.run_records import Records
from bench.validate.recount.timing import exposed
from ddp.core.messages.events import Finished, Ready, Reduced, Slice, Snapshot
from tests.bench.streams import MODES, make_metrics, make_records, make_spec, write_run

stretches = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=12
)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in pairs], np.float64), np.array([b for _, b in pairs], np.float64)


@given(stretches, stretches)
def test_stretches_are_sets_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    moments = [{moment for a, b in pairs for moment in range(a, b)} for pairs in (one, other)]
    sets = [union(*columns(pairs)) for pairs in (one, other)]
    assert [seconds(each) for each in sets] == [len(each) for each in moments]
    assert common(*sets) == pytest.approx(len(moments[0] & moments[1]))
    both = intersection(*sets)
    assert {moment for a, b in zip(*both, strict=True) for moment in range(int(a), int(b))} == moments[0] & moments[1]
    assert seconds(clipped(*columns(one), 10, 40)) == len(moments[0] & set(range(10, 40)))
    for starts, stops in (*sets, both):
        assert (starts[1:] > stops[:-1]).all()


def ready(rank: int) -> Ready:
    return Ready(100.0, rank, 64, 10, "d", "cpu", "gloo")


def test_steps_hold_what_is_exchanged_inside_them() -> None:
    row = [("data", 0.0, 1.0), ("forward", 1.0, 2.0), ("exchange", 3.0, 2.0), ("optimizer", 5.0, 1.0)]
    row += [("evaluate", 6.0, 5.0), ("data", 11.0, 1.0), ("backward", 12.0, 3.0), ("exchange", 15.0, 4.0)]
    stream = sort([ready(0), ready(1), *(Slice(100 + at, 0, kind, length) for kind, at, length in row)], 99.0)
    first, nothing = step_times(stream, 2)
    assert nothing is None
    assert first is not None
    assert (first.count, first.p50_ms) == (2, pytest.approx(5000))
    assert (first.p95_ms, first.p99_ms) == (pytest.approx(5900), pytest.approx(5980))


def test_a_step_of_micro_batches_ends_with_the_optimizer() -> None:
    parts = [("data", 0.0), ("forward", 1.0), ("data", 2.0), ("forward", 3.0), ("optimizer", 4.0)]
    slices = [Slice(100 + at + 10 * n, rank, kind, 1.0) for rank in (0, 1) for n in range(3) for kind, at in parts]
    stream = sort([ready(0), ready(1), *slices], 99.0)
    rows = [row for row in step_times(stream, 2, micro=True) if row is not None]
    assert [(row.count, round(row.p50_ms)) for row in rows] == [(3, 5000)] * 2
    assert [row.count for row in step_times(stream, 2) if row is not None] == [6, 6]


def test_who_waits_for_a_straggler_in_every_step_is_none() -> None:
    """Ranks that meet before the optimizer all take as long as the slowest one: the index was always 1."""
    slices: list[Slice] = []
    for step in range(3):
        at = 100.0 + step
        for rank, works in enumerate((0.2, 0.6)):
            slices += [
                Slice(at, rank, "data", 0.1, -1),
                Slice(at + 0.1, rank, "backward", works - 0.1, -1),
                Slice(at + works, rank, "exchange", 0.7 - works, step),
                Slice(at + 0.7, rank, "optimizer", 0.1, -1),
            ]
    stream = sort([ready(0), ready(1), *slices], 99.0)
    assert [round(row.p50_ms) for row in step_times(stream, 2) if row is not None] == [800, 800]
    assert straggler_index(stream) == pytest.approx(0.7 / 0.5)
    assert straggler_index(sort([], 99.0)) is None


def test_a_bucket_that_goes_during_the_backward_pass_is_hidden_and_takes_none_of_its_time() -> None:
    """On the wire it is from the last arrival on, as any collective; what outlasts the backward pass is waited for."""
    slices = [
        slice
        for rank, began in ((0, 101.0), (1, 102.0))
        for slice in (
            Slice(100.0, rank, "backward", 6.0),
            Slice(began, rank, "hidden", 107.0 - began, 1, 64),
            Slice(106.0, rank, "wait", 1.0),
            Slice(107.0, rank, "exchange", 1.0, 2, 8),
        )
    ]
    stream = sort([ready(0), ready(1), *slices, *(Finished(110.0, rank, "d", 1, 0) for rank in (0, 1))], 99.0)
    for rank in (0, 1):
        found = overlap(stream, rank)
        assert (found.comm_s, found.hidden_s) == (pytest.approx(6.0), pytest.approx(4.0))
    rows = breakdown(stream, walls(stream, 2))
    assert (rows[0].compute, rows[0].wait, rows[0].comm) == (pytest.approx(0.6), pytest.approx(0.1), pytest.approx(0.1))
    totals = sync(stream)
    assert (totals.count, totals.bytes) == (2, 2 * (64 + 8))


def test_waiting_for_ones_own_buckets_is_communicating_once_all_have_sent_them() -> None:
    """It was waiting for orders."""
    slices = [
        slice
        for rank, ends, began in ((0, 103.0, 101.0), (1, 106.0, 104.0))
        for slice in (
            Slice(100.0, rank, "backward", ends - 100.0),
            Slice(began, rank, "hidden", 107.0 - began, 1, 64),
            Slice(ends, rank, "wait", 107.0 - ends, 1),
            Slice(107.0, rank, "exchange", 1.0, 2, 8),
        )
    ]
    events: list[Any] = [ready(0), ready(1), *slices, *(Finished(110.0, rank, "d", 1, 0) for rank in (0, 1))]
    stream = sort(events, 99.0)
    rows = breakdown(stream, walls(stream, 2))
    assert [(row.wait, row.comm) for row in rows] == [pytest.approx((0.1, 0.4)), pytest.approx((0.0, 0.2))]
    assert next((gap.cause, gap.by, gap.seconds) for gap in gaps(stream)) == ("late rank", 1, pytest.approx(1.0))
    known = explained(stream, 2, 99.0, 110.0)
    assert known is not None
    found = {(each.rank, each.cause): each.seconds for each in known.causes}
    assert found[0, "waiting for rank 1"] == pytest.approx(1.0)
    assert found[0, "communicating"] == pytest.approx(4.0)
    assert not any(cause == ORDERS for _, cause in found)
    records = Records()
    measured = split(slices)
    records.add_slices(measured.slices, measured.seconds)
    assert exposed(records) == pytest.approx({0: 3.0, 1: 1.0})
    assert (sync(stream).count, sync(stream).bytes) == (2, 2 * (64 + 8))


def test_what_the_coordinator_averages_meanwhile_is_hidden() -> None:
    slices = [Slice(100.0, 0, "copy", 1.0), Slice(101.0, 0, "forward", 4.0), Slice(106.0, 0, "wait", 4.0)]
    records = [ready(0), *slices, Reduced(103.0, 0, 1.5, 8), Reduced(109.0, 1, 2.0, 8), Finished(110.0, 0, "d", 1, 0)]
    found = overlap(sort(records, 99.0), 0)
    assert (found.comm_s, found.hidden_s) == (pytest.approx(4.5), pytest.approx(1.5))
    assert found.hidden == pytest.approx(1.5 / 4.5)


def test_the_last_to_arrive_is_told_from_those_who_waited() -> None:
    meets = [(1, [0.0, 0.3, 0.1]), (2, [1.0, 1.2, 1.4]), (3, [2.0, 2.1]), (4, [3.0])]
    slices = [Slice(100 + at, rank, "exchange", 5 - at, seq) for seq, each in meets for rank, at in enumerate(each)]
    rows = arrivals(sort(slices, 99.0), 4)
    assert [(row.reductions, row.last) for row in rows] == [(3, 0), (3, 2), (2, 1), (0, 0)]
    assert [row.late_ms for row in rows] == [0.0, pytest.approx(200), pytest.approx(250), None]
    assert rows[1].last_share == pytest.approx(2 / 3)
    laid_down = [Snapshot(100 + at, rank, seq, 1, 1) for seq, each in meets for rank, at in enumerate(each)]
    assert arrivals(sort(laid_down, 99.0), 4) == rows
    assert [row.reductions for row in arrivals(sort([], 99.0), 2)] == [0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_every_result_has_them(mode: str) -> None:
    spec = make_spec(mode)
    metrics = make_metrics(spec, make_records(spec, step_s=(0.01, 0.014)[: spec.world_size]))
    found = metrics.timeline
    assert found is not None
    assert [row.count for row in found.steps if row is not None] == [90] * spec.world_size
    gaps = sum(row.seconds for row in found.idle)
    wall = metrics.time_s.rank_wall
    assert gaps == pytest.approx(
        sum((row.wait + row.other) * s for row, s in zip(metrics.breakdown, wall, strict=True))
    )
    assert found.volume.bytes == metrics.sync.bytes
    if spec.world_size > 1:
        assert found.straggler_index == pytest.approx(14 / 12, rel=0.1)
        assert [row.last_share for row in found.arrivals] == [pytest.approx(0, abs=0.3), pytest.approx(1, abs=0.3)]
        assert sum(row.last for row in found.arrivals) == found.arrivals[0].reductions > 0
        assert found.volume.ratio is not None
        assert [row.hidden for row in found.overlap or ()] == [0.0, 0.0]


def test_a_result_from_before_can_still_be_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec())
    body = json.loads((folder / "metrics.json").read_text())
    assert body["schema_version"] == SCHEMA_VERSION
    del body["timeline"]
    (folder / "metrics.json").write_text(json.dumps(body | {"schema_version": 1}))
    (run,), problems = find_runs(tmp_path)
    assert problems == []
    assert run.metrics.timeline is None
