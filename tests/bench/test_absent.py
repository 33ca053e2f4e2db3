"""The time of ranks that join later, or are lost and return: simulated runs, through the analysis of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.report import write_report
from bench.results.analyze import analyze
from bench.results.schema import Metrics
from bench.validate.checks.breakdown import FRACTIONS
from ddp.core.messages.events import Slice
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation
from tests.bench.report_parts import part
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_spec, write_run

SPEC = make_spec("nccl_cadence", 3, batch_size=4, epochs=1)
START_S = 7.0
"""Seconds from the order to start a process until it is ready to join."""


def result(absent: int = 0, **happens: Any) -> Metrics:
    """Simulate three ranks with steps of one second, `absent` of them absent at the start."""
    world = World(
        3, 400, 4, 1, blocking=True, in_step=False, deadline_s=60.0, tolerate_loss=True, restarts=None, absent=absent
    )
    cost = Costs(wire_s=0.0, latency_s=0.0, start_s=lambda rank, life: START_S)
    played = Simulation(POLICIES["cadence"](anchor=5, max_anchor=5), world, cost, **happens)
    slices: list[Slice] = []
    played.measured = lambda rank, kind, start, stop, seq: slices.append(Slice(start, rank, kind, stop - start, seq))
    played.run()
    records = [*(record for _, record in played.records), *slices]
    metrics = analyze(SPEC, records, status="ok", launched=0.0, ended=played.now, env={}, git={})
    assert [sum(getattr(rank, name) for name in FRACTIONS) for rank in metrics.breakdown] == pytest.approx([1.0] * 3)
    return metrics


def test_a_rank_that_joins_later_is_absent_until_then() -> None:
    """Such a run had no breakdown."""
    metrics = result(absent=1, offers=(10.0,))
    assert metrics.late == [2]
    first, second, late = metrics.breakdown
    assert (first.absent, second.absent) == (0.0, 0.0)
    assert late.absent * metrics.time_s.rank_wall[2] == pytest.approx(10.0 + START_S)
    assert metrics.time_s.rank_wall == pytest.approx([metrics.time_s.rank_wall[0]] * 3, abs=6.0)
    trained = [rank.compute * wall for rank, wall in zip(metrics.breakdown, metrics.time_s.rank_wall, strict=True)]
    assert sum(trained) == pytest.approx(100.0, abs=0.01), "every step took a second"
    assert late.wait < 0.3, "it waited to be let in, not since the start"


def test_a_rank_that_never_came_was_absent_all_the_time() -> None:
    metrics = result(absent=1)
    assert metrics.late == [2]
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
    earlier = metrics.model_copy(update={"breakdown": [], "schema_version": 5})
    write_run(tmp_path / "earlier", SPEC, earlier)
    page = write_report(tmp_path / "earlier", tmp_path / "out")
    which = "Left out: 1 run in which ranks joined later"
    assert f"{which}, recorded by a version that did not count their absence." in part(page, "Where the time went")
    assert f"{which}: causes are known of the others only." in part(page, "Idle time by cause")


def test_nobody_absent_is_not_spoken_of(tmp_path: Path, undrawn: None) -> None:
    write_run(tmp_path / "runs", SPEC, result())
    assert "absent" not in part(write_report(tmp_path / "runs", tmp_path / "out"), "Where the time went")
