"""Losses of ranks that draw from one order: chance alone tells them apart, whatever tails they have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.validate.checks import data
from bench.validate.evidence import derivation
from bench.validate.records.run_records import Records
from bench.validate.rules.losses_of_ranks import Share, higher_loss, reported_otherwise
from bench.validate.verdicts.findings import Case
from ddp.core.messages.event_parts import Trained
from ddp.core.messages.events import Progress, Ready
from ddp.core.messages.run_bounds import RunHeader
from tests.bench.validate.told import DATA

PLAN = cast(Any, SimpleNamespace(dispatch="progressive", in_step=True))


def reports(
    factor: float = 1.0, every: int = 1, ranks: int = 2, tail: float = 0.3, seed: int = 0, turns: tuple[int, ...] = ()
) -> list[Progress]:
    """Of three epochs, of each step: of falling losses with a long tail, of which every so many of rank 1's is larger by a
    factor. `turns`: which rank makes a step, again and again."""
    chance, made = np.random.default_rng(seed), list[Progress]()
    order, steps = turns or tuple(range(ranks)), [0] * ranks
    for number in range(900 * ranks):
        rank, epoch = order[number % len(order)], number // (300 * ranks)
        loss = 0.5**epoch * chance.lognormal(0.0, tail)
        steps[rank] += 1
        if rank == 1 and steps[rank] % every == 0:
            loss *= factor
        made.append(Progress(float(number), rank, epoch, 1, 32, 0.1, 32 * loss, 0.1))
    return made


def told(made: list[Progress], plan: Any = PLAN) -> str:
    return higher_loss(Records(progress=made, plans=[plan]))


@pytest.mark.parametrize(("factor", "every", "ranks"), [(40.0, 60, 2), (1.6, 1, 2), (1.6, 1, 4)])
def test_a_rank_whose_loss_is_higher_is_named(factor: float, every: int, ranks: int) -> None:
    found = told(reports(factor, every, ranks))
    assert found.startswith("rank 1, epoch "), found
    assert "its training loss is" in found


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("tail", [0.3, 1.0, 2.0])
def test_chance_names_nobody(tail: float, ranks: int) -> None:
    assert [line for seed in range(10) if (line := told(reports(tail=tail, ranks=ranks, seed=seed)))] == []


@pytest.mark.parametrize("turns", [(0, 0, 1), (0, 0, 0, 1), (0,)])
def test_nor_does_a_rank_that_trains_more(turns: tuple[int, ...]) -> None:
    assert [line for seed in range(10) if (line := told(reports(tail=2.0, seed=seed, turns=turns)))] == []


def test_what_cannot_be_compared_names_nobody() -> None:
    large = reports(1.6)
    assert told(reports(1.2)) == "", "averages of their own may explain it"
    assert told(large, SimpleNamespace(dispatch="partition", in_step=True)) == ""
    assert told([replace(each, loss_sum=each.loss_sum - 200.0) for each in large if each.loss_sum]) == ""
    assert told([*large, replace(large[0], loss_sum=None)]) == ""
    assert told(large[:0]) == told(reports(40.0, 60, 1)) == told(large[:22]) == ""
    assert told(reports(1.6, turns=(0, 0, 0, 1))) == "", "it steps too seldom to be like the others"


@pytest.mark.parametrize(
    ("elastic", "rounds", "named"), [(None, 8, True), (1.0, 8, True), (0.5, 8, False), (None, 7, False)]
)
def test_replicas_that_stay_apart_have_losses_of_their_own(elastic: float | None, rounds: int, named: bool) -> None:
    header = RunHeader(0.0, 0.0, {"config": {"averaging": {"elastic": elastic}}}, {}, {})
    plan, closed = cast(Any, SimpleNamespace(dispatch="progressive", in_step=False)), cast(Any, [None] * rounds)
    known = Records(progress=reports(1.6), plans=[plan], closed=closed, headers=[header])
    assert bool(higher_loss(known)) is named


def test_the_check_of_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that lost nobody, whose ranks draw from one order."""

    def judged(made: list[Progress], samples: int = DATA.training.samples) -> Any:
        known = Records(ready=[Ready(0.0, 0, samples, 10, "", "cpu", "", data=DATA)], progress=made, plans=[PLAN])
        metrics = SimpleNamespace(seed=3, faults=[], begun_without=[], scripted_faults=[], epochs_planned=3)
        monkeypatch.setattr(derivation, "records", lambda run, lost: known)
        cell = SimpleNamespace(runs=[SimpleNamespace(metrics=metrics)])
        return data.check(Case(cast(Any, cell), None))

    monkeypatch.setattr(data, "_amiss", lambda *about: iter(()))
    monkeypatch.setattr(data, "verdict", lambda name, check, cell, line: (name, line))
    name, line = judged(reports(1.6))
    assert (name, line.startswith("seed 3: rank 1, epoch ")) == ("SUSPICIOUS", True)
    assert judged(reports())[0] == "PASS"
    assert judged(reports(1.6), DATA.training.samples - 1)[0] == "PASS", "a sampler draws for each rank"


def sums(made: list[Progress], epochs: int = 3) -> list[Trained]:
    """Return the second sums of two ranks: one of each epoch."""
    of: list[Trained] = []
    for epoch in range(epochs):
        for rank in range(2):
            own = [each for each in made if (each.epoch, each.rank) == (epoch, rank)]
            of.append(
                Trained(
                    *(0.0, rank, epoch, sum(each.samples for each in own), None, None, 0),
                    loss_sum=sum(each.loss_sum or 0.0 for each in reversed(own)),
                )
            )
    return of


def differences(made: list[Progress], trained: list[Trained], broken: Collection[Share] = ()) -> list[str]:
    return list(reported_otherwise(Records(progress=made, trained=trained), broken))


def test_reports_with_the_losses_that_were_trained_are_clean() -> None:
    for seed in range(10):
        made = reports(tail=2.0, seed=seed)
        assert differences(made, sums(made)) == []


@pytest.mark.parametrize("factor", [0.0, 0.999, 1.2])
def test_a_report_with_another_loss_is_found(factor: float) -> None:
    made = reports()
    trained = sums(made)
    worst = max(range(len(made)), key=lambda number: made[number].loss_sum or 0.0)
    made[worst] = replace(made[worst], loss_sum=factor * (made[worst].loss_sum or 0.0))
    (line,) = differences(made, trained)
    assert line.startswith(f"rank {made[worst].rank}, epoch {made[worst].epoch}: reports have a sum of losses of ")
    assert differences(made, trained, {(made[worst].epoch, made[worst].rank)}) == []


def test_sums_of_other_samples_or_without_losses_are_not_compared() -> None:
    made = reports()
    trained = sums(made)
    half = [replace(each, loss_sum=0.5 * (each.loss_sum or 0.0)) for each in made]
    assert len(differences(half, trained)) == 6
    assert differences(half, [replace(each, samples=each.samples + 32) for each in trained]) == []
    assert differences(half, [replace(each, loss_sum=None) for each in trained]) == []
    assert differences([replace(each, loss_sum=None) for each in half], trained) == []
