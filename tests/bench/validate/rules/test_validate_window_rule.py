"""Windows that the learning rate sizes, against the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import JsonValue

from bench.results.schema import Elche, GuardRow, Metrics, PlanRow, WindowRow
from bench.validate.records.run_records import Records
from bench.validate.rules.window_rule import (
    above_need,
    apart_from_plan,
    apart_from_speeds,
    below_need,
    beyond_lead,
    off_rule,
)
from ddp.core.messages.commands import Average, Plan, Train
from ddp.core.messages.events import Progress, Ready, RoundClosed, Snapshot
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.settings.world import World
from ddp.sim import Costs, simulate
from tests.bench.streams import make_metrics, make_spec

QSR: dict[str, JsonValue] = {"name": "qsr", "base": 4, "alpha": 0.1}
RATES = [0.1, 0.05, 0.02, 0.04, 0.01, 0.001, 0.001]
NOTHING: dict[str, Any] = {"divergence": 0.1, "value": 0.1, "limit": 0.05, "factor": 1.0}
DUE = [4, 4, 25, 4, 100, 500, 500]
"""(0.1 / rate)^2, at least 4, at most the 500 steps of an epoch; 4 where the rate rises."""


def recorded(anchors: list[int], rates: list[float] = RATES) -> tuple[Metrics, Records]:
    """Make a run whose rounds have `rates`, each with the order behind it."""
    known, windows, plans = Records(), [], [_plan(0.5, 4)]
    known.ready.append(Ready(0.0, 0, samples=8000, parameters=1, digest="", device="cpu", transport="memory"))
    for number, (rate, anchor) in enumerate(zip(rates, anchors, strict=True)):
        none, at = (0.0, 0.0), number + 1.0
        known.closed.append(RoundClosed(at, number, (4, 4), none, 0.1, none, none, (False, False), lr=rate))
        windows.append(WindowRow(seconds=at, round=number, steps=[4, 4], ms_per_batch=[None, None]))
        if plans[-1].anchor != anchor:  # what stays is not ordered again
            plans.append(_plan(at, anchor))
    elche = Elche(anchor=4, counts=[4, 4], plans=plans, windows=windows, guard=[])
    return make_metrics(make_spec()).model_copy(update={"batch_size": 16, "elche": elche}), known


def _plan(seconds: float, anchor: int) -> PlanRow:
    return PlanRow(seconds=seconds, anchor=anchor, counts=[anchor, min(2 * anchor, 500 - anchor)], phase="", reason="")


@pytest.mark.parametrize(
    ("anchors", "wrong"),
    [
        (DUE, ""),
        ([4, 4, 4, 4, 4, 4, 500], ""),  # shorter in some
        ([4, 4, 25, 25, 100, 500, 500], "round 3: the ordered anchor is 25, the rule gives 4 at learning rate 0.04"),
        ([4, 4, 25, 4, 100, 170, 170], ""),  # the slower one's part of an epoch
        ([3, 3, 5, 4, 10, 10, 10], "5 of 6 orders are too short"),
    ],
)
def test_windows_grow_as_the_rate_falls(anchors: list[int], wrong: str) -> None:
    found = off_rule(*recorded(anchors), dict(QSR))
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_of_the_first_rate_nobody_knows_whether_it_rises() -> None:
    warm_up = [0.001, 0.01, 0.05, 0.1]
    assert off_rule(*recorded([4] * 4, warm_up), dict(QSR)) == ""
    assert off_rule(*recorded([500, 4, 4, 4], warm_up), dict(QSR)).startswith("round 0: the ordered anchor is 500")


def test_other_policies_have_no_rule_of_the_rate() -> None:
    assert off_rule(*recorded([9] * 7), {"name": "cadence", "anchor": 9}) == ""


@pytest.mark.parametrize(
    ("steps", "busy_s", "settings", "wrong"),
    [
        ((25, 10), (1.0, 1.0), {}, False),
        ((640, 10), (1.0, 3.0), {}, False),
        ((15, 10), (0.6, 1.0), {}, True),
        ((15, 10), (0.6, 1.0), {"max_batch_diff": 5}, False),
        ((15, 10), (0.6, 1.0), {"dispatch": "partition"}, False),
        ((15, 10), (0.6, 1.0), {"base": 4}, False),
        ((10, 10), (1.0, 1.5), {}, False),
        ((3, 2), (0.12, 0.2), {}, False),
    ],
)
def test_steps_go_by_speed(
    steps: tuple[int, ...], busy_s: tuple[float, ...], settings: dict[str, JsonValue], wrong: bool
) -> None:
    """Where it is faster, the first rank is so 2.5 times, and once 192 times, of which the controller counts 64."""
    metrics = make_metrics(make_spec("nccl_cadence"))
    known = Records()
    for number in range(16):
        stalled = 50.0 if number == 9 else 1.0  # says nothing of a speed
        parts = busy_s[0], busy_s[1] * stalled
        known.closed.append(RoundClosed(1.0, number, steps, parts, 0.1, (0.0, 0.0), (0.0, 0.0), (False, False)))
    own: dict[str, JsonValue] = {"speed_hint": None, "dispatch": "progressive", **settings}
    assert bool(apart_from_speeds(metrics, known, own)) is wrong
    scripted = metrics.model_copy(update={"scripted_faults": ["1@9:slow*3"]})
    assert apart_from_speeds(scripted, known, own) == ""


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"max_overshoot": 3}, "an order lets ranks run 4 steps ahead, but max_overshoot is set to 3"),
        ({"dispatch": "partition"}, "an order dispatches samples as progressive, but dispatch is set to partition"),
        ({"partition_ratios": [4.0, 1.0]}, "an order dispatches samples as progressive, but dispatch is set to fixed"),
        ({"speed_hint": [1.0, 1.0]}, "first order: [40, 10] steps, but speed_hint is set to [1.0, 1.0]"),
        ({"speed_hint": [1.0, 1.0], "max_batch_diff": 30}, ""),
        ({"speed_hint": None}, ""),
    ],
)
def test_orders_are_those_of_the_settings(change: dict[str, JsonValue], wrong: str) -> None:
    """A dispatch, an overshoot and a hint were ignored."""
    first = Plan((40, 10), (4, 4), True, 1, False, 10, "as hinted")
    known = Records(plans=[first, Plan((20, 20), (4, 4), True, 1, False, 20, "as measured")])
    settings = {"max_overshoot": 4, "dispatch": "progressive", "speed_hint": [400.0, 100.0], **change}
    assert apart_from_plan(make_metrics(make_spec("cpu_async")), known, settings) == wrong


@pytest.mark.parametrize("make", [Cadence, Async])
@pytest.mark.parametrize("dispatch", ["progressive", "partition"])
@pytest.mark.parametrize(
    ("bound", "set_to", "wrong"), [(2, 2, False), (0, 0, False), (1, 0, False), (3, 2, True), (None, 2, True)]
)
def test_no_rank_is_granted_more_than_it_may_be_ahead(
    make: Any, dispatch: str, bound: int | None, set_to: int, wrong: bool
) -> None:
    """A bound on leads held for counts alone."""
    known = simulated(make(max_batch_diff=bound, dispatch=dispatch), (0.01, 0.1, 0.04), 360, blocking=False)
    found = beyond_lead(make_metrics(make_spec("cpu_async")), known, {"max_batch_diff": set_to})
    assert bool(found) is wrong, found
    assert beyond_lead(make_metrics(make_spec("nccl_cadence")), known, {"max_batch_diff": 0}) == "", "ranks block"


@pytest.mark.parametrize(
    ("target", "set_to", "wrong"), [(0.02, 0.02, False), (0.02, 0.5, True), (0.5, 0.02, False), (0.1, 0.1, False)]
)
def test_windows_grow_no_more_than_averages_cost(target: float, set_to: float, wrong: bool) -> None:
    """The target of their cost was ignored."""
    metrics = make_metrics(make_spec("nccl_cadence"))
    known = simulated(Cadence(overhead_target=target), (0.01, 0.01, 0.012), 3600, blocking=True)
    for min_anchor in (0, 300):
        found = above_need(metrics, known, {"overhead_target": set_to, "anchor": 10, "min_anchor": min_anchor})
        assert bool(found) is (wrong and not min_anchor), found


def simulated(policy: Any, step_s: tuple[float, ...], samples: int, blocking: bool) -> Records:
    """What ranks would record."""
    costs = Costs(lambda rank, step: step_s[rank], latency_s=1e-4, wire_s=0.03)
    world, known = World(3, samples, 1, 2, blocking=blocking, in_step=False), Records()
    places: dict[type, list[Any]] = {
        **{Ready: known.ready, Progress: known.progress, Snapshot: known.snapshots},
        **{RoundClosed: known.closed, Plan: known.plans},
    }
    for at, record in simulate(policy, world, costs=costs).records:
        if isinstance(record, Train | Average):
            known.work.append((at, record))
        else:
            places.get(type(record), []).append(record)
    return known


@pytest.mark.parametrize(
    ("anchors", "change", "wrong"),
    [
        ([10] * 30, {}, "round 15: an anchor of 10 was ordered 8 times, but averages call for 500 at least"),
        ([10] * 15, {}, ""),  # too few
        ([10 + number // 4 for number in range(30)], {}, ""),
        ([150] * 30, {}, ""),  # near its bound
        ([10] * 30, {"max_anchor": 15}, ""),
        ([10] * 30, {"max_batch_diff": 3}, ""),
        ([10] * 30, {"base": 4}, ""),
        ([10] * 30, {"overhead_target": 0.5}, ""),
        ([10] * 30, {"guard": [GuardRow(seconds=1.0, round=0, guard="level", verdict="suppress", **NOTHING)]}, ""),
        ([10] * 30, {"backend": "cpu"}, ""),
    ],
)
def test_windows_grow_while_averages_cost_too_much(anchors: list[int], change: dict[str, Any], wrong: str) -> None:
    """Half of the time went into averages, of 2 % that were set, and nothing was said."""
    m, known = recorded(anchors, [0.1] * len(anchors))
    closed = [replace(event, steps=(10, 10), busy_s=(0.1, 0.1)) for event in known.closed]
    assert m.elche is not None
    elche = m.elche.model_copy(update={"guard": change.get("guard", [])})
    m = m.model_copy(update={"elche": elche, "backend": change.get("backend", "nccl")})
    settings = {"name": "cadence", "max_anchor": 200, "overhead_target": 0.02} | change
    found = below_need(m, replace(known, closed=closed), settings)
    assert wrong in found
    assert bool(wrong) == bool(found)
