"""Rounds against the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.cells import cells
from bench.results.runfolder import Run
from bench.results.schema import Elche, FaultRow, PlanRow, WindowRow
from bench.validate.checks import windows
from bench.validate.checks.windows import beyond_orders, beyond_settings
from bench.validate.verdicts.findings import Case
from tests.bench.streams import make_metrics, make_spec


def plan(seconds: float, *counts: int) -> PlanRow:
    return PlanRow(seconds=seconds, anchor=min(counts), counts=list(counts), phase="", reason="")


def window(seconds: float, number: int, *steps: int) -> WindowRow:
    return WindowRow(seconds=seconds, round=number, steps=list(steps), ms_per_batch=[None] * len(steps))


def schedule(plans: list[PlanRow], windows: list[WindowRow]) -> Elche:
    return Elche(anchor=1, counts=[1, 1], plans=plans, windows=windows, guard=[])


PLANS = [plan(0.1, 10, 10), plan(1.0, 20, 24)]


@pytest.mark.parametrize(
    ("mode", "steps", "settings", "wrong"),
    [
        ("nccl_cadence", (20, 24), {}, False),
        ("nccl_cadence", (3, 1), {}, False),  # the end of an epoch
        ("nccl_cadence", (10, 34), {}, False),  # taken over on the way
        ("nccl_cadence", (24, 24), {}, True),
        ("nccl_cadence", (400, 480), {}, True),  # twenty times too long
        ("nccl_async", (24, 24), {"max_overshoot": 4}, False),
        ("cpu_async", (40, 48), {}, False),
        ("cpu_cadence", (60, 48), {}, True),
    ],
)
def test_a_window_is_no_longer_than_ordered(
    mode: str, steps: tuple[int, int], settings: dict[str, int], wrong: bool
) -> None:
    elche = schedule(PLANS, [window(1.0, 0, 10, 10), window(1.5, 1, 10, 10), window(2.0, 2, *steps)])
    found = beyond_orders(make_metrics(make_spec(mode)), elche, dict(settings))
    assert bool(found) == wrong
    assert not wrong or found.startswith("round 2: windows of ")


def test_what_was_granted_under_an_order_may_end_after_the_next() -> None:
    shrunk = [plan(0.1, 20, 20), plan(1.0, 5, 5)]
    metrics = make_metrics(make_spec("nccl_cadence"))
    late = [window(1.0, 0, 20, 20), window(2.0, 1, 20, 20), window(3.0, 2, 5, 5)]
    assert beyond_orders(metrics, schedule(shrunk, late), {}) == ""
    later = [*late[:2], window(3.0, 2, 5, 5), window(4.0, 3, 20, 20)]
    assert "round 3" in beyond_orders(metrics, schedule(shrunk, later), {})


def test_a_window_ahead_was_granted_a_round_earlier_where_nobody_blocks() -> None:
    """Of a run that was gone on with: rank 0 had 8 steps and 8 ahead by the second order, which it ended in round 4."""
    plans = [plan(0.62, 2, 7), plan(0.66, 8, 2), plan(0.6898, 3, 2), plan(0.715, 2, 3)]
    ends = [(0.62, 2, 3), (0.66, 2, 4), (0.6898, 4, 4), (0.71, 8, 6), (0.76, 8, 5)]
    rounds = [window(seconds, number, *steps) for number, (seconds, *steps) in enumerate(ends)]
    elche = schedule(plans, rounds)
    assert beyond_orders(make_metrics(make_spec("cpu_cadence")), elche, {}) == ""
    assert "round 3" in beyond_orders(make_metrics(make_spec("nccl_cadence")), elche, {})
    much = schedule(plans, [*rounds[:4], window(0.76, 4, 28, 5)])
    assert "round 4" in beyond_orders(make_metrics(make_spec("cpu_cadence")), much, {})


def test_where_nobody_blocks_each_rank_acts_on_an_order_of_its_own() -> None:
    """Of a run of four ranks: ranks 0 and 1 had trained by the third order, ranks 2 and 3 by the second one still."""
    plans = [plan(0.494, 10, 10, 10, 10), plan(0.54, 20, 31, 59, 83), plan(0.564, 47, 15, 15, 13)]
    ends = [(0.538, 11, 15, 15, 15), (0.5639, 20, 19, 16, 11), (0.6516, 67, 62, 118, 147)]
    rounds = [window(seconds, number, *steps) for number, (seconds, *steps) in enumerate(ends)]
    metrics = make_metrics(make_spec("cpu_async", world_size=4))
    assert beyond_orders(metrics, schedule(plans, rounds), {}) == ""
    much = schedule(plans, [*rounds[:2], window(0.6516, 2, 97, 65, 121, 169)])
    assert "round 2" in beyond_orders(metrics, much, {})


def test_no_order_is_beyond_the_settings() -> None:
    assert beyond_settings(schedule(PLANS, []), {"anchor": 10, "max_anchor": 20}) == ""
    assert "max_anchor" in beyond_settings(schedule(PLANS, []), {"anchor": 10, "max_anchor": 19})
    assert "first order" in beyond_settings(schedule(PLANS, []), {"anchor": 9, "max_anchor": 200})
    assert beyond_settings(schedule(PLANS, []), {"anchor": 9, "max_anchor": 200}, began=False) == "", "gone on with"
    assert beyond_settings(schedule(PLANS, []), {"anchor": 9, "min_anchor": 10, "max_anchor": 200}) == ""
    assert beyond_settings(schedule(PLANS, []), {}) == ""


@pytest.mark.parametrize(("most", "name"), [(20, None), (19, "FAIL")])
def test_no_order_is_beyond_the_settings_behind_a_loss_either(most: int, name: str | None) -> None:
    """Such runs were left out altogether, and anchors of 101 steps passed where 20 were set."""
    lost = FaultRow(seconds=0.5, rank=1, kind="lost", text="killed")
    long = schedule(PLANS, [window(1.5, 0, 400, 400)])  # one rank does what another was to do
    metrics = make_metrics(make_spec("nccl_cadence")).model_copy(update={"faults": [lost], "elche": long})
    (cell,) = cells([Run(Path("there"), metrics, {"policy": {"anchor": 10, "max_anchor": most}})])
    found = windows.check(Case(cell, None))
    assert (found and found.name) == name
