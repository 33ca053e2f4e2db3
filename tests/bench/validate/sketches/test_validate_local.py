"""Averages of PyTorch's local SGD are inside steps where they are due, and nowhere else. Buffers may become an average."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.validate.checks.average import _due
from bench.validate.checks.evaluation import _models
from ddp.core.messages.event_parts import StepSketch
from ddp.core.messages.events import Averaged, Evaluated, Progress
from tests.bench.references import one
from tests.bench.streams import make_spec
from tests.bench.validate.sketched import GROUPS, mixed, put, sketch
from tests.bench.validate.told import each, write

FIRST, PERIOD = 100, 4


def found(steps: int, *sketches: tuple[int, bool]) -> list[str]:
    """Return what is said of rank 0 that did so many steps, with sketches (step, whether of parameters)."""
    exchanged = [StepSketch(step, 16, 1, "", "", model=model) for step, model in sketches]
    own = Progress(1.0, 0, 0, steps, 16 * steps, 0.5, 0.0, 0.1, exchanged=tuple(exchanged))
    other = Progress(1.0, 1, 0, steps, 16 * steps, 0.5, 0.0, 0.1)
    return list(_due(cast(Any, SimpleNamespace(progress=[own, other])), 2, FIRST, PERIOD))


def test_averages_are_where_they_are_due() -> None:
    assert found(300, (3, False), (100, True), (296, True)) == []


def test_one_before_the_first_or_between_is_none() -> None:
    assert "step 96" in found(300, (96, True), (100, True))[0]
    assert "step 102" in found(300, (100, True), (102, True))[0]


def test_a_run_without_any_is_told_from_one_that_is_too_short() -> None:
    assert "the first is due in step 100" in found(300, (3, False))[0]
    assert found(100, (3, False)) == []


def test_runs_of_before_averages_were_recorded_say_nothing() -> None:
    assert found(300) == []


def evaluated(model: str, *own: str) -> str:
    """Return what is said of a model that was evaluated while replicas had these sketches."""
    events = [Evaluated(1.0, rank, 0, 8, 1.0, 1.0, 0.1, rank, 1.0, model, own=each) for rank, each in enumerate(own)]
    known = SimpleNamespace(evaluated=events, groups=GROUPS, averaged=[], finished=[], evaluated_rounds=dict)
    return _models(cast(Any, known))


def test_what_is_evaluated_is_the_mean_of_replicas() -> None:
    first, second = sketch(1.0, 2.0, 3.0), sketch(2.0, 5.0, 3.0)
    assert evaluated(mixed([(0.5, first), (0.5, second)]), first, second) == ""
    assert "not the mean of the ranks' replicas (head.bias" in evaluated(first, first, second)
    assert evaluated(first, "", second) == ""


@pytest.mark.parametrize(("before", "after", "name"), [([2], [], "PASS"), ([1], [], "FAIL"), ([2], [2], "FAIL")])
def test_buffers_alone_may_become_the_average(tmp_path: Path, before: list[int], after: list[int], name: str) -> None:
    """Groups that moved on after the snapshot, and those that are not the average after it."""
    other = sketch(9.0, 9.0, 9.0)
    write(
        tmp_path,
        make_spec("cpu_async"),
        each(
            Averaged,
            lambda e: replace(
                e,
                sketch_before=put(e.sketch_before, other, before),
                sketch_average=e.sketch_average or e.sketch_after,
                sketch_after=put(e.sketch_after, mixed([(0.5, other)]), after),
            ),
        ),
    )
    assert one(tmp_path, tmp_path / "none", "average").name == name
