"""The check `breakdown` between two reports of a rank: waiting that is booked as steps shows there, however short it is. And
between the last snapshot and its average."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.results.analysis.stream import Slices
from bench.validate.checks import breakdown
from bench.validate.records.run_records import Records
from bench.validate.rules.due_slices import lacking
from ddp.core.messages.events import Progress, Reduced, Slice, Snapshot
from ddp.core.messages.run_bounds import RunEnd, RunHeader

WAITS = tuple((at + 0.8, at + 1.0) for at in range(10))
"""Of ten seconds, the last 0.2 of each."""


def said(reports: list[tuple[float, float]], engine: str = "elche") -> str:
    """Say what is wrong with reports (at, busy_s) of one rank that was ready at 0 and waited in `WAITS`."""
    known: Any = Records()
    known.ready.append(SimpleNamespace(rank=0, at=0.0))
    known.progress.extend(SimpleNamespace(rank=0, at=at, busy_s=busy) for at, busy in reports)
    known.rests[0].extend(WAITS)
    run: Any = SimpleNamespace(metrics=SimpleNamespace(engine=engine, time_s=SimpleNamespace(rank_wall=[10.0])))
    return breakdown._rests_in_steps(run, known)


def test_steps_beside_waiting_are_fine() -> None:
    assert said([(at + 0.8, 0.8) for at in range(10)]) == ""


def test_what_a_report_fell_into_counts_in_the_next_one() -> None:
    assert said([(0.5, 0.2), (0.8, 0.6), *((at + 0.8, 0.8) for at in range(1, 10))]) == ""


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_waiting_in_steps_is_named(share: float) -> None:
    assert "s twice: as steps and as waiting" in said([(at + 0.8, 0.8 + 0.2 * share) for at in range(10)])


@pytest.mark.parametrize("engine", ["elche", "graph"])
def test_threads_read_their_steps_off_later(engine: str) -> None:
    """By 8 ms in each report, as one of them computes at a time."""
    reports = [(at + part / 200, 0.005 + (0.008 if part == 20 else 0.0)) for at in range(10) for part in range(1, 41)]
    assert bool(said(reports, engine)) is (engine != "graph")


def test_a_rank_without_reports_is_not_judged() -> None:
    assert said([]) == ""


@pytest.mark.parametrize(
    ("seconds", "line"), [(0.5, ""), (0.7, "averaging round 3 took 0.7 s, its last snapshot was 0.5 s before")]
)
def test_averaging_begins_when_all_snapshots_are_there(seconds: float, line: str) -> None:
    laid = [Snapshot(at, rank, 3, 1, 16) for rank, at in enumerate((1.0, 2.0))]
    known = Records(snapshots=laid, reduced=[Reduced(2.5, 3, seconds, 100), Reduced(9.0, 4, 5.0, 100)])
    assert breakdown._averaging(cast(Any, None), known).startswith(line)
    assert bool(breakdown._averaging(cast(Any, None), known)) is bool(line)


@pytest.mark.parametrize(("seconds", "wrong"), [(0.5, False), (0.1, True), (0.0, True)])
def test_averages_take_no_less_than_their_copies(seconds: float, wrong: bool) -> None:
    known: Any = Records()
    known.ready.append(SimpleNamespace(rank=0))
    known.averaged.append(SimpleNamespace(rank=0, away_s=seconds))
    known.seconds[0, "copy"] = 0.4
    run: Any = SimpleNamespace(metrics=SimpleNamespace(engine="elche", backend="cpu", policy="async"))
    assert bool(breakdown._away(run, known)) is wrong
    run.metrics.policy = "sync"  # whose copies are in its steps
    assert not breakdown._away(run, known)


@pytest.mark.parametrize(("kinds", "turned"), [("forward backward", 0), ("backward forward", 40)])
def test_a_pass_backward_comes_behind_one_forward(kinds: str, turned: int) -> None:
    known = Records()
    names = ["data", *kinds.split()] * 40
    slices = [Slice(float(at), 0, kind, 0.5) for at, kind in enumerate(names)]
    known.add_slices(Slices.of(slices), np.full(len(slices), 0.5))
    assert known.turned[0] == turned
    known.progress.append(Progress(120.0, 0, 0, 40, 0, 1.0, 20.0, 0.1))
    run: Any = SimpleNamespace(metrics=SimpleNamespace(engine="elche", batch_size=8, backend="cpu", policy="async"))
    assert ("backward passes without a forward pass on that batch" in lacking(run, known)) is bool(turned)


@pytest.mark.parametrize(("elapsed", "wrong"), [(100.9, False), (None, False), (125.0, True), (80.0, True)])
def test_the_clock_of_a_run_goes_as_another_one(elapsed: float | None, wrong: bool) -> None:
    header, end = RunHeader(7.0, 5.0, {}, {}, {}), RunEnd(105.0, "ok", None, (), 0, elapsed)
    run: Any = SimpleNamespace(metrics=SimpleNamespace(source=None, resumed=None))
    said = breakdown._clock(run, Records(headers=[header], ends=[end]))
    assert said == (
        f"the run took 100 s by its own clock, but {elapsed:.4g} s by another clock of the machine" if wrong else ""
    )


def test_virtual_time_and_what_was_resumed_have_other_clocks() -> None:
    known = Records(headers=[RunHeader(0.0, 0.0, {}, {}, {})], ends=[RunEnd(9.0, "ok", None, (), 0, 1.0)])
    for source, resumed in (("virtual", None), (None, "a checkpoint")):
        assert (
            breakdown._clock(cast(Any, SimpleNamespace(metrics=SimpleNamespace(source=source, resumed=resumed))), known)
            == ""
        )
