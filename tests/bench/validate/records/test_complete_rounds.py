"""What checks see of runs that lost ranks: rounds that are whole, and what each rank trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.validate.checks.average import _Rounds
from bench.validate.records.complete_rounds import unbroken
from bench.validate.records.run_records import Records
from bench.validate.sketches.outer_steps import OUTER
from ddp.core.messages.commands import Reduce
from ddp.core.messages.event_parts import StepSketch
from ddp.core.messages.events import Averaged, Progress, Ready, Snapshot
from ddp.core.messages.join_events import Joined
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
