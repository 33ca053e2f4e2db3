"""Verdicts of the guard against the divergences, windows against both; settings of a policy that arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import JsonValue

from bench.results.schema import Elche, GuardRow, Metrics, PlanRow
from bench.validate.emulation.emulated_ranks import otherwise_slow
from bench.validate.records.run_records import Records
from bench.validate.rules.guard_rule import against_guard
from bench.validate.rules.window_rule import apart_from_settings
from ddp.core.messages.commands import Plan
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.events import Progress, Ready, RoundClosed
from tests.bench.streams import make_metrics, make_spec

LEVEL: dict[str, JsonValue] = {"name": "cadence", "guard": "level", "divergence_threshold": 0.05}
APART = [0.04, 0.06, 0.07, 0.08, 0.09, 0.01, 0.02, 0.03, 0.04, 0.03, 0.02]
SOUND = {2: "suppress", 3: "suppress", 4: "nudge"}
ANCHORS = [10, 10, 10, 10, 5, 5, 5, 5, 5, 10, 10]
"""Behind each round; it may grow behind the fifth that is stable again, which is round 9."""


def rounds(apart: list[float], anchors: list[int], verdicts: dict[int, str]) -> tuple[Metrics, Records]:
    known, none = Records(), (0.0, 0.0)
    known.ready.append(Ready(0.0, 0, samples=8000, parameters=1, digest="", device="cpu", transport="memory"))
    known.plans.append(_plan(10, "10 steps each until speeds are known"))
    for number, (value, anchor) in enumerate(zip(apart, anchors, strict=True)):
        known.closed.append(
            RoundClosed(1.0 + number, number, (4, 4), none, 0.1, none, (value / 2, value), (False, False))
        )
        if known.plans[-1].anchor != anchor:
            known.plans.append(_plan(anchor, f"window {number}, stable: 1.0/1.0 ms per step"))
    rows = [
        GuardRow(seconds=number, round=number, guard="level", verdict=verdict, divergence=0, value=0, limit=0, factor=1)
        for number, verdict in verdicts.items()
    ]
    elche = Elche(anchor=4, counts=[4, 4], plans=[], windows=[], guard=rows)
    return make_metrics(make_spec()).model_copy(update={"batch_size": 16, "elche": elche}), known


def _plan(anchor: int, reason: str) -> Plan:
    return Plan((anchor, anchor), (0, 0), False, 0, False, anchor, reason)


@pytest.mark.parametrize(
    ("anchors", "verdicts", "wrong"),
    [
        (ANCHORS, SOUND, ""),
        (ANCHORS, {}, "round 2: the guard (level) reported stable, but a divergence of 0.07 means suppress"),
        (
            ANCHORS,
            SOUND | {6: "suppress"},
            "round 6: the guard (level) reported suppress, but a divergence of 0.02 means stable",
        ),
        ([10, 10, 20, 10, 5, 5, 5, 5, 5, 5, 5], SOUND, "round 2: an anchor of 20 is ordered, at most 10 is allowed"),
        ([10] * 11, SOUND, "round 4: an anchor of 10 is ordered, at most 5 is allowed, as the guard reported nudge"),
        ([10, 10, 10, 10, 5, 5, 5, 9, 9, 9, 9], SOUND, "round 7: an anchor of 9 is ordered"),
    ],
)
def test_the_guard_follows_the_divergence_and_windows_the_guard(
    anchors: list[int], verdicts: dict[int, str], wrong: str
) -> None:
    found = against_guard(*rounds(APART, anchors, verdicts), dict(LEVEL))
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_nothing_is_said_of_what_is_not_known() -> None:
    metrics, known = rounds(APART, ANCHORS, {})
    assert against_guard(metrics, known, {**LEVEL, "no_divergence_guard": True}) == ""
    assert against_guard(metrics, known, {**LEVEL, "guard": "own"}) == ""
    assert against_guard(metrics.model_copy(update={"late": [1]}), known, dict(LEVEL)) == ""
    cut = [replace(plan, counts=(250, 250)) for plan in known.plans]
    longer = rounds(APART, [10, 10, 20, 20, 5, 5, 5, 5, 5, 5, 5], SOUND)[1]
    assert (
        against_guard(rounds(APART, ANCHORS, SOUND)[0], replace(longer, plans=[cut[0], *longer.plans[1:]]), dict(LEVEL))
        == ""
    )


def test_growth_is_judged_by_its_rate() -> None:
    growing = [0.01 * 1.1**number for number in range(8)]
    settings: dict[str, JsonValue] = {**LEVEL, "guard": "growth"}
    anchors = [10, 10, 10, 5, 5, 5, 5, 3]
    due = {3: "nudge", 7: "nudge"}  # 0.024 a step, three times in a row
    assert against_guard(*rounds(growing, anchors, due), settings) == ""
    assert "round 3" in against_guard(*rounds(growing, anchors, {}), settings)


@pytest.mark.parametrize(
    ("counts", "settings", "wrong"),
    [
        ([10, 12], {"max_batch_diff": 2}, False),
        ([10, 13], {"max_batch_diff": 2}, True),
        ([7, 3], {"partition_ratios": [0.7, 0.3]}, False),
        ([24, 10], {"partition_ratios": [0.7, 0.3]}, False),
        ([10, 24], {"partition_ratios": [0.7, 0.3]}, True),
        ([20, 20], {"min_anchor": 20}, False),
        ([10, 20], {"min_anchor": 20}, True),
        ([10, 490], {"min_anchor": 20}, False),  # an epoch's steps
        ([9, 9], {"anchor": 10, "min_anchor": 0}, True),
    ],
)
def test_settings_of_a_policy_arrive(counts: list[int], settings: dict[str, Any], wrong: bool) -> None:
    metrics, known = rounds(APART, ANCHORS, {})
    plan = PlanRow(seconds=1.0, anchor=min(counts), counts=counts, phase="", reason="")
    elche = Elche(anchor=4, counts=[4, 4], plans=[plan], windows=[], guard=[])
    metrics = metrics.model_copy(update={"elche": elche})
    assert bool(apart_from_settings(metrics, known, settings)) == wrong


def slow(waited: float, speeds: list[float], script: list[str], steps: int = 400) -> str:
    """What is said of a rank that worked for 4 s, 1 of it without a core, and waited for so long to be slow. Its first
    step took as long as all others."""
    first, rest = WorkSeconds(0.2, 1.8, 0.4, 0.1), WorkSeconds(0.2, 1.8 + waited, 0.4, 0.1)
    reports = [(1, first), (steps - 1, rest)]
    known = Records(progress=[Progress(9.0, 1, 0, count, 6400, 5.0, 1.0, 0.1, work=work) for count, work in reports])
    known.seconds.update({(1, "data"): 0.4, (1, "forward"): 1.6, (1, "backward"): 2.0, (1, "slowdown"): waited})
    metrics = make_metrics(make_spec("nccl_cadence")).model_copy(update={"scripted_faults": script})
    return otherwise_slow(metrics, known, {"cluster": {"speeds": speeds}})


@pytest.mark.parametrize(
    ("waited", "speeds", "script", "wrong"),
    [
        (0.0, [], [], False),
        (3.0, [1, 0.5], [], False),
        (1.5, [1, 0.5], [], False),
        (0.0, [1, 0.5], [], True),
        (8.0, [1, 0.5], [], True),
        (3.0, [], [], True),
        (3.0, [], ["1@200:slow*3"], False),
        (0.0, [], ["1@200:slow*3"], True),
        (0.0, [], ["1@200:slow*3", "1@201:heal"], False),
        (0.0, [], ["1@200:slow*3", "1@300:input*3"], False),
    ],
)
def test_ranks_are_as_slow_as_is_set(waited: float, speeds: list[float], script: list[str], wrong: bool) -> None:
    assert bool(slow(waited, speeds, script)) == wrong


def test_a_rank_waits_for_a_typical_step() -> None:
    """One report in eleven has steps that take a hundred times as long, as batches come in bursts."""
    reports = [(40, WorkSeconds(0.04, 0.76, 0.0, 0.0))] * 10 + [(40, WorkSeconds(40.0, 0.76, 0.0, 0.0))]
    known = Records(progress=[Progress(9.0, 1, 0, count, 640, 5.0, 1.0, 0.1, work=work) for count, work in reports])
    known.seconds.update({(1, "data"): 40.4, (1, "forward"): 2.0, (1, "backward"): 2.0, (1, "slowdown"): 4.0})
    metrics = make_metrics(make_spec("nccl_cadence"))
    assert otherwise_slow(metrics, known, {"cluster": {"speeds": [1, 0.5]}}) == ""


def test_a_short_run_tells_little_of_its_speed() -> None:
    assert slow(0.0, [1, 0.5], [], steps=100) == ""
