"""What checks see of runs that lost ranks: rounds that are whole, and what each rank trained."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate.checks import average, breakdown
from bench.validate.checks.average import _Rounds
from bench.validate.evidence import derivation
from bench.validate.records.complete_rounds import unbroken
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from bench.validate.sketches.outer_steps import OUTER
from bench.validate.verdicts.findings import Case
from ddp.core.messages.commands import Reduce
from ddp.core.messages.event_parts import StepSketch
from ddp.core.messages.events import Averaged, Evaluated, Lost, Progress, Ready, Snapshot
from ddp.core.messages.join_events import Joined
from tests.bench.validate.evidence.test_edited import LOST
from tests.bench.validate.records.test_validate_reported import GROUPS as WEIGHTS
from tests.bench.validate.records.test_validate_reported import rounds
from tests.bench.validate.sketched import GROUPS, mixed, sketch

OWN = [sketch(1.0 + rank, -2.0 * rank, 0.5) for rank in range(3)]
BEGAN = sketch(0.0, 0.0, 0.0)


def averaged(number: int, ranks: tuple[int, ...], became: str) -> list[Averaged]:
    """The answers of ranks that met, each with ten samples."""
    return [Averaged(1.0, rank, number, 1, 10, 0.1, 8, 0.0, 0.0, 0.0, OWN[rank], became) for rank in ranks]


def wrong(known: Records) -> list[str]:
    """What is said of the rounds that can be looked at."""
    ready = [Ready(0.0, 0, 30, 10, "", "cpu", "memory", sketched=GROUPS, sketch=BEGAN)]
    return [line for line in _Rounds(unbroken(replace(known, ready=ready)), {}, 3).judge() if line]


def test_a_round_that_lost_a_rank_is_not_judged_and_the_next_one_is() -> None:
    of_three, of_two = mixed([(1 / 3, own) for own in OWN]), mixed([(1 / 2, own) for own in OWN[:2]])
    # In round 1 the third rank was lost behind the exchange: the average is of three, and two tell of it.
    rounds = averaged(0, (0, 1, 2), of_three) + averaged(1, (0, 1), of_three) + averaged(2, (0, 1), of_two)
    assert wrong(Records(averaged=rounds)) == []
    assert any("round 2" in line for line in wrong(Records(averaged=[*rounds[:5], *averaged(2, (0, 1), of_three)])))


def test_snapshots_count_that_were_ordered_to_be_averaged() -> None:
    of_three, of_two = mixed([(1 / 3, own) for own in OWN]), mixed([(1 / 2, own) for own in OWN[:2]])
    snapshots = [Snapshot(1.0, rank, 0, 1, 10, OWN[rank]) for rank in range(3)]
    for members, made in (((0, 1, 2), of_three), ((0, 1), of_two)):
        order = Reduce(0, members, tuple(10 for _ in members), "")
        for became in (of_two, of_three):
            answers = [replace(each, steps=0, samples=0) for each in averaged(0, members, became)]
            known = Records(snapshots=snapshots, averaged=answers, reduces=[order])
            assert bool(wrong(known)) is (became != made)


def test_exchanges_of_a_rank_that_joined_are_numbered_anew() -> None:
    def reported(at: float, rank: int, step: int) -> Progress:
        exchanged = (StepSketch(step, 10, 20, OWN[rank], OWN[rank]),)
        return Progress(at, rank, 0, 1, 10, 0.1, 1.0, 0.1, exchanged=exchanged)

    reports = [reported(1.0, 0, 0), reported(1.0, 1, 0), reported(2.0, 0, 7), reported(2.0, 1, 7)]
    again = [reported(4.0, 0, 9), reported(4.0, 1, 0), reported(5.0, 0, 13), reported(5.0, 1, 13)]
    known = unbroken(Records(progress=reports + again, joined=[Joined(3.0, 1, 4)]))
    compared = [(own[0].step, own[1]) for own in known.exchanges(2)]
    assert [step for step, _ in compared] == [0, 7]
    assert compared[0][1].before == OWN[1]


@pytest.mark.parametrize(("outer", "ahead", "carried"), [("momentum", 1.0, 0.9), ("nesterov", 1.9, 0.81)])
@pytest.mark.parametrize("forgotten", [None, 4, 5])
def test_an_outer_optimizer_is_held_to_its_steps_again_behind_a_gap(
    outer: str, ahead: float, carried: float, forgotten: int | None
) -> None:
    """Of the parameters, one value each; `forgotten`: the round in which its velocity begins anew."""
    rate = OUTER[outer][0]
    last, velocity, rounds = np.zeros(2), np.zeros(2), list[Averaged]()
    for number in range(6):
        mean = last - np.array([1.0 + number, 0.5 * number - 1.0])
        velocity = np.zeros(2) if number == forgotten else velocity
        became = last - rate * (ahead * (last - mean) + carried * velocity)
        velocity = last - mean + 0.9 * velocity
        own = "" if number == 1 else sketch(*mean, 0.0)
        rounds.append(replace(averaged(number, (0,), sketch(*became, 0.0))[0], sketch_before=own))
        last = became
    ready = [Ready(0.0, 0, 30, 10, "", "cpu", "memory", sketched=GROUPS, sketch=BEGAN)]
    known = Records(averaged=rounds, ready=ready)
    judged = _Rounds(known, {"outer": outer}, 1).judge()
    said = [line for line in judged if "weighted mean" in line]
    assert bool(said) is (forgotten is not None), said
    assert all(f"round {forgotten}" in line for line in said[:1])


def of_a_loss(**more: Any) -> tuple[Any, Records]:
    """A run that lost its third rank, which told of more than it measured; and what the others told, truly."""
    known = Records(lost=[Lost(9.0, 2, "killed")], joined=[])
    for rank in range(3):
        for at in range(8):
            known.progress.append(Progress(at + 0.5, rank, 0, 1, 8, 0.5, 1.0, 0.1))
            known.averaged.append(Averaged(at + 0.6, rank, at, 1, 8, 0.1, 1_000, 0.0))
            known.collectives[at].append((rank, at + 0.5, at + 0.6, 1_000 if rank < 2 else 10))
        known.evaluated.append(Evaluated(9.5, rank, 0, 100, 50.0, 90.0, 2.0))
        for kind in ("data", "forward", "backward", "optimizer", "exchange", "evaluate"):
            known.slices[rank, kind] = 8 if rank < 2 else 1
        known.seconds[rank, "evaluate"] = 2.0 if rank < 2 else 0.1
    rows = [SimpleNamespace(compute=0.3 if rank < 2 else 0.9, data=0.0) for rank in range(3)]
    about = {
        "engine": "elche",
        "backend": "nccl",
        "policy": "cadence",
        "world_size": 3,
        "batch_size": 8,
        "faults": ["lost"],
        "scripted_faults": ["2@9:crash"],
        "begun_without": [],
    }
    times = SimpleNamespace(rank_wall=[12.0] * 3)
    metrics = SimpleNamespace(**(about | {"breakdown": rows, "time_s": times} | more))
    return SimpleNamespace(metrics=metrics, config={}), known


def test_of_a_lost_rank_no_time_is_compared() -> None:
    assert breakdown._amiss(*of_a_loss()) == ""


@pytest.mark.parametrize(
    ("kind", "change", "line"),
    [
        ("progress", {"busy_s": 0.1}, "rank 0 reports 3.6 s of computing, but its steps took only 0.8 s"),
        ("progress", {"steps": 2}, "rank 0 recorded 8 timings of data for 16 steps"),
        ("averaged", {"bytes": 500}, "rank 0 reports 4,000 bytes sent, its recorded collectives moved 8,000"),
        ("averaged", {"seconds": 0.5}, "rank 0 reports 4 s of averaging, its recorded collectives took 0.8 s"),
        ("evaluated", {"seconds": 8.0}, "rank 0 reports 8 s of evaluation, the recorded ones took 2 s"),
    ],
)
def test_times_and_bytes_of_the_others_are_compared(kind: str, change: dict[str, Any], line: str) -> None:
    """Once a rank was lost, nobody's times and bytes were looked at."""
    run, known = of_a_loss()
    told = [replace(event, **change) for event in getattr(known, kind)]
    assert breakdown._amiss(run, replace(known, **{kind: told})) == line


def test_a_loss_may_break_an_average_or_make_a_rank_load_one() -> None:
    run, known = of_a_loss()
    broken = replace(known, averaged=[event for event in known.averaged if event.round or event.rank])
    assert breakdown._amiss(run, broken) == ""
    del known.collectives[3]
    assert breakdown._amiss(run, known) == ""


def test_a_step_that_a_loss_breaks_has_slices_and_no_report() -> None:
    run, known = of_a_loss(policy="sync")
    assert breakdown._amiss(run, replace(known, averaged=[], progress=known.progress[2:])) == ""


@pytest.mark.parametrize("more", [{"scripted_faults": ["0@9:lose"]}, {"begun_without": [2]}])
def test_of_lost_reports_and_absent_ranks_nothing_is_said(more: dict[str, Any]) -> None:
    run, known = of_a_loss(**more)
    assert breakdown._amiss(run, replace(known, progress=known.progress[3:], lost=[])) == ""


def test_distances_of_a_torn_round_do_not_count() -> None:
    """The lost rank may have contributed to it."""
    events = [
        replace(each, distance=1.0) for number in (0, 1) for each in averaged(number, (0, 1, 2)[: 3 - number], BEGAN)
    ]
    assert [each.distance for each in unbroken(Records(averaged=events)).averaged] == [1.0] * 3 + [None] * 2


def test_the_check_looks_at_runs_that_lost_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = find_runs(LOST)[0]
    known = records(run, lost=True)
    assert known is not None
    for more, name in ((0.0, "PASS"), (5.0, "FAIL")):
        told = [replace(event, seconds=event.seconds + more) for event in known.evaluated]
        monkeypatch.setattr(
            derivation, "records", lambda run, lost, told=told: replace(known, evaluated=told) if lost else None
        )
        verdict = breakdown.check(Case(cells([run])[0], None))
        assert verdict is not None
        assert verdict.name == name, verdict.line


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_distances_are_compared_in_a_run_that_lost_a_rank(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """A divergence three times as large passed there."""
    monkeypatch.setattr(Records, "groups", WEIGHTS)
    known = rounds(16)
    told = [replace(event, divergence=times * (event.divergence or 0.0)) for event in known.averaged]
    run, _ = of_a_loss(world_size=2, status="ok", resumed=None)
    run.config["averaging"] = {"gamma": 1.0, "outer": "none", "wire": "float64"}
    assert ("the reported divergence is" in average._compared(run, replace(known, averaged=told))[0]) is (times != 1.0)
