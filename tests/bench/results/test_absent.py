"""The time of ranks that join later, or are lost and return: simulated runs, through the analysis of real ones."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.report import write_report
from bench.results.analysis.breakdown import absences
from bench.results.analysis.faults import faults
from bench.results.analysis.idle import gaps
from bench.results.analysis.steady import steady
from bench.results.analysis.stream import sort
from bench.results.analysis.timeline import overlap
from bench.results.analyze import analyze
from bench.results.schema import Metrics
from bench.runner.progress import ProgressDisplay
from bench.timeline.figure import _bars
from bench.timeline.lanes import PHASE, make_trace
from bench.validate.checks.breakdown import FRACTIONS
from ddp.core.messages import commands, events
from ddp.core.messages.events import Finished, Ready, Reduced, Slice
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.policies import POLICIES
from ddp.core.rounds.rounds import IN_STEP
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.bench.report_parts import part
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_metrics, make_records, make_spec, write_run

SPEC = make_spec("nccl_cadence", 3, batch_size=4, epochs=1)
START_S = 7.0
"""Seconds from the order to start a process until it is ready to join."""


def played(
    absent: int = 0, wire_s: float = 0.0, in_step: bool = False, samples: int = 400, epochs: int = 1, **happens: Any
) -> tuple[list[Any], float]:
    """Simulate three ranks with steps of one second, `absent` of them absent at the start; return the records and when
    the run ended."""
    world = World(
        *(3, samples, 4, epochs),
        blocking=True,
        in_step=in_step,
        deadline_s=60.0,
        tolerate_loss=True,
        restarts=None,
        absent=absent,
    )
    cost = Costs(wire_s=wire_s, latency_s=0.0, start_s=lambda rank, life: START_S)
    policy = POLICIES["sync"]() if in_step else POLICIES["cadence"](anchor=5, max_anchor=5)
    simulation = Simulation(policy, world, cost, **happens)
    slices: list[Slice] = []

    def measured(rank: int, kind: str, start: float, stop: float, seq: int) -> None:
        if kind == "forward":  # a step begins with a batch
            slices.append(Slice(start, rank, "data", 0.0))
        slices.append(Slice(start, rank, kind, stop - start, seq))

    simulation.measured = measured
    simulation.run()
    return [*(record for _, record in simulation.records), *slices], simulation.now


def result(absent: int = 0, status: str = "ok", wire_s: float = 0.0, **happens: Any) -> Metrics:
    """Return the result of such a run. Every rank's fractions sum to 1, and its gaps to what it waited."""
    records, ended = played(absent, wire_s, **happens)
    metrics = analyze(SPEC, records, status=status, launched=0.0, ended=ended, env={}, git={})
    if not metrics.breakdown:
        return metrics
    assert [sum(getattr(rank, name) for name in FRACTIONS) for rank in metrics.breakdown] == pytest.approx([1.0] * 3)
    idle = [
        (rank.wait + rank.other) * wall for rank, wall in zip(metrics.breakdown, metrics.time_s.rank_wall, strict=True)
    ]
    assert metrics.timeline is not None
    gaps = [sum(row.seconds for row in metrics.timeline.idle if row.rank == rank) for rank in range(3)]
    assert gaps == pytest.approx(idle, abs=1e-9)
    return metrics


def causes(metrics: Metrics, rank: int) -> dict[str, tuple[float, int | None]]:
    """Return cause of a rank's idle time -> (seconds, the rank waited for)."""
    assert metrics.timeline is not None
    return {row.cause: (row.seconds, row.by) for row in metrics.timeline.idle if row.rank == rank}


def test_a_rank_that_joins_later_is_absent_until_then() -> None:
    """Such a run had no breakdown."""
    metrics = result(absent=1, offers=(10.0,))
    assert (metrics.late, metrics.absent, metrics.warnings) == ([2], [], [])
    first, second, late = metrics.breakdown
    assert (first.absent, second.absent) == (0.0, 0.0)
    assert late.absent * metrics.time_s.rank_wall[2] == pytest.approx(10.0 + START_S)
    assert metrics.time_s.rank_wall == pytest.approx([metrics.time_s.rank_wall[0]] * 3, abs=6.0)
    trained = [rank.compute * wall for rank, wall in zip(metrics.breakdown, metrics.time_s.rank_wall, strict=True)]
    assert sum(trained) == pytest.approx(100.0, abs=0.01), "every step took a second"
    assert late.wait < 0.3, "it waited to be let in, not since the start"


def test_a_rank_that_never_came_was_absent_all_the_time() -> None:
    metrics = result(absent=1)
    assert (metrics.late, metrics.absent, metrics.begun_without) == ([], [2], [2]), "it was called late"
    assert metrics.warnings == ["rank 2 never came: while a run lasts, python -m bench join RUN offers a process"]
    assert (metrics.breakdown[2].absent, metrics.breakdown[2].other) == (1.0, 0.0)
    assert metrics.breakdown[0].compute > 0.9


def test_a_rank_that_was_lost_is_absent_until_its_next_process_is_there() -> None:
    """That counted as bookkeeping."""
    metrics = result(deaths=((12.5, 1),))
    assert metrics.late == []
    assert [rank.absent > 0 for rank in metrics.breakdown] == [False, True, False]
    assert metrics.breakdown[1].absent * metrics.time_s.rank_wall[1] == pytest.approx(START_S)


def test_a_rank_that_is_absent_is_not_expected_to_train() -> None:
    """It was: the efficiency of this run was 79 %."""
    assert result(absent=1, offers=(10.0,)).throughput.efficiency == pytest.approx(0.92, abs=0.005)


def test_the_report_says_so(tmp_path: Path, undrawn: None) -> None:
    metrics = result(absent=1, offers=(10.0,))
    write_run(tmp_path / "runs", SPEC, metrics)
    told = part(write_report(tmp_path / "runs", tmp_path / "out"), "Where the time went")
    assert "| absent |" in told
    assert "without a rank, that rank is *absent*" in told
    assert "Left out" not in part(page := write_report(tmp_path / "runs", tmp_path / "out"), "Idle time by cause")
    assert "orders: state" in part(page, "Idle time by cause")
    earlier = metrics.model_copy(update={"breakdown": [], "schema_version": 5})
    write_run(tmp_path / "earlier", SPEC, earlier)
    page = write_report(tmp_path / "earlier", tmp_path / "out")
    which = "Left out: 1 run in which ranks joined later"
    assert f"{which}, recorded by a version that did not count their absence." in part(page, "Where the time went")
    idle = f"{which}, recorded by a version that did not count their idle time."
    assert idle in part(page, "Idle time by cause")


def test_nobody_absent_is_not_spoken_of(tmp_path: Path, undrawn: None) -> None:
    write_run(tmp_path / "runs", SPEC, result())
    assert "absent" not in part(write_report(tmp_path / "runs", tmp_path / "out"), "Where the time went")


def test_a_rank_that_joins_later_has_a_part_in_every_list() -> None:
    """They were empty, for all ranks."""
    metrics = result(absent=1, wire_s=0.25, offers=(10.0,))
    assert metrics.timeline is not None
    steps = metrics.timeline.steps
    assert [row.count > 0 and row.p50_ms == pytest.approx(1000) for row in steps if row is not None] == [True] * 3
    assert sum(row.count for row in steps if row is not None) == 100
    first, _, late = metrics.timeline.arrivals
    assert 0 < late.reductions < first.reductions
    assert metrics.timeline.overlap is not None
    assert len(metrics.timeline.overlap) == 3
    assert metrics.timeline.straggler_index == pytest.approx(1.0)


def test_a_rank_that_joins_later_is_idle_from_then_on_only() -> None:
    """Nothing was known of it. The first that it waits for is the state of the others."""
    metrics = result(absent=1, offers=(10.0,))
    own = causes(metrics, 2)
    assert 0 < own["orders: state"][0] < 6.0, "until the end of the window in which it came"
    wall, rank = metrics.time_s.rank_wall[2], metrics.breakdown[2]
    assert sum(seconds for seconds, _ in own.values()) == pytest.approx(
        wall - (rank.absent + rank.compute + rank.comm) * wall
    )
    assert "startup" not in own


def test_a_rank_that_never_came_is_not_idle() -> None:
    metrics = result(absent=1)
    assert causes(metrics, 2) == {}
    assert metrics.timeline is not None
    assert metrics.timeline.steps[2] is None
    assert metrics.timeline.arrivals[2].reductions == 0


@pytest.mark.parametrize("status", ["ok", "killed"])
def test_what_is_idle_until_a_loss_is_noticed_is_a_fault_and_absence_is_none(status: str) -> None:
    """The seconds without a process for it were idle time for the fault. Of a run that was killed, too."""
    own = causes(result(status=status, deaths=((12.5, 1),)), 1)
    assert own.get("fault", (0.0, 1))[0] < 1.0
    assert own.get("fault", (0.0, 1))[1] == 1
    assert "orders: state" in own


def test_ranks_that_came_later_are_known_of_a_killed_run() -> None:
    metrics = result(absent=1, status="killed", offers=(10.0,))
    assert metrics.breakdown == []
    assert "orders: state" in causes(metrics, 2)


def test_what_is_averaged_while_a_rank_is_absent_is_none_of_its_communication() -> None:
    """It overlapped no training of that rank, so little seemed hidden."""
    begun, back = 1.0, 5.0
    ready = [Ready(begun, rank, 64, 10, "d", "cpu", "gloo") for rank in (0, 1)]
    averages = [Reduced(3.0, 0, 1.0, 8), Reduced(7.0, 1, 1.0, 8)]
    stream = sort(
        [*ready, Joining(back, 2, 64, "d"), *averages, *(Finished(9.0, rank, "d", 1, 0) for rank in range(3))], 0.0
    )
    away = absences(stream, 3)
    assert away == {2: [(begun, back)]}
    assert [overlap(stream, rank, away.get(rank, ())).comm_s for rank in range(3)] == [2.0, 2.0, 1.0]


def test_the_timeline_shows_when_a_rank_was_absent() -> None:
    """Such a rank was `never ready`, and had no epochs."""
    records, ended = played(1, offers=(10.0,))
    stream = sort(records, 0.0)
    trace = make_trace(stream, SPEC, 0.0, gaps(stream))
    assert "never ready" not in trace.processes[2][0]
    phases = {name: (begin / 1e9, end / 1e9) for begin, end, name, *_ in trace.lanes()[2, PHASE]}
    assert phases["absent"] == pytest.approx((0.0, 10.0 + START_S))
    assert phases["epoch 0"][1] == pytest.approx(ended)
    assert "absent" not in {name for _, _, name, *_ in trace.lanes()[0, PHASE]}
    assert (2, PHASE) not in make_trace(sort((), 0.0), SPEC, 0.0).lanes()


def test_a_person_is_told_who_has_joined_and_who_is_back() -> None:
    records, _ = played(1, offers=(10.0,), deaths=((30.5, 1),))
    out = io.StringIO()
    with ProgressDisplay(SPEC, Console(file=out), out, absent=1) as display:
        for record in records:
            display.update(record)
    said = out.getvalue()
    assert "2 of 3 ranks on " in said
    assert said.index("rank 2 has joined") < said.index("rank 1 is back")
    marks = {mark[3] for mark in make_trace(sort(records, 0.0), SPEC, 0.0).marks}
    assert {"rank 2 has joined", "rank 1 is back"} <= marks


def test_the_picture_shows_it_too() -> None:
    """It was blank there: `not measured`."""
    records, ended = played(1, offers=(10.0,), deaths=((30.5, 1),))
    bars = _bars(sort(records, 0.0))
    shown = {rank: [each.tolist() for each in bars[rank, "absent"]] for rank in range(3) if (rank, "absent") in bars}
    (left,), (back,) = shown.pop(1)
    assert (left, back) == (30.5, pytest.approx(30.5 + START_S))
    assert shown == {2: [[0.0], [10.0 + START_S]]}
    assert back < ended


def test_gaps_of_ranks_that_come_and_go_add_up() -> None:
    metrics = result(absent=1, wire_s=0.25, offers=(10.0,), deaths=((30.5, 1),))
    walls = zip(metrics.breakdown, metrics.time_s.rank_wall, strict=True)
    away = [round(rank.absent * wall, 6) for rank, wall in walls]
    assert away == [0.0, START_S, 10.0 + START_S]
    assert "orders: state" in causes(metrics, 1).keys() & causes(metrics, 2).keys()
    assert metrics.timeline is not None
    assert {row.by for row in metrics.timeline.idle if row.cause == "fault"} <= {1, None}, "no survivor went wrong"


@pytest.mark.parametrize("when", [80.0, None], ids=["joins", "never comes"])
def test_the_steady_state_is_that_of_the_ranks_that_are_there(when: float | None) -> None:
    """It began before the rank joined, whose speed was too low then; or there was none, if a rank never came."""
    records, ended = played(1, in_step=True, samples=800, epochs=2, offers=() if when is None else (when,))
    found = steady(sort(records, 0.0), 3)
    assert found is not None
    assert [share is None for share in found.waiting_or_communicating] == [False, False, when is None]
    assert found.bound == pytest.approx(12.0, rel=0.01), "the global batch of 12 samples takes a second"
    assert found.samples_per_s == pytest.approx(found.bound, rel=0.01)
    assert found.seconds < ended


def test_a_rank_that_never_came_is_absent_in_the_goodput_of_a_killed_run() -> None:
    """It was starting until the end."""
    goodput = result(absent=1, status="killed").goodput
    assert goodput is not None
    assert (goodput.parts.absent, goodput.parts.starting) == (pytest.approx(1 / 3), 0.0)


def test_a_collective_that_ends_because_ranks_leave_for_one_that_joins_is_no_fault() -> None:
    """Where gradients are averaged in steps: a rank that had begun the next step found that the others had left."""
    leave = [commands.Leave(rank, 0, "rank 2 is back") for rank in (0, 1)]
    broke = [events.AverageFailed(103.0, 1, IN_STEP, "rank 0 has left")]
    joins = [commands.Join(rank, 1, (0, 1, 2), False, "ranks that exchange gradients") for rank in (0, 1, 2)]
    assert make_metrics(SPEC, [*make_records(SPEC), *leave, *broke, *joins]).faults == []
    (fault,) = make_metrics(SPEC, [*make_records(SPEC), *leave, *joins, *broke]).faults
    assert (fault.rank, fault.kind) == (None, "average_failed")


def test_shared_steps_that_enter_the_model_as_a_rank_returns_were_not_trained_again() -> None:
    """They were said to be: the ledger enters them once the rank has joined."""
    records: list[Any] = [
        events.Progress(1.0, 1, 0, 4, 64, 0.1, 1.0, 0.1),
        *(
            events.Lost(2.0, 1, "gone"),
            commands.Drop(1, "gone"),
            Joined(3.0, 1, 0),
            events.Merged(3.0, 1, 0, ((0, 64),)),
        ),
        *(events.Progress(4.0, 1, 0, 3, 48, 0.1, 1.0, 0.1), events.Merged(5.0, 1, 0, ((64, 112),))),
    ]
    (fault,) = faults(sort(records, 0.0), 3)
    assert fault.action == "went on with ranks 0 and 2; back 1.0 s later"
