"""The training clock stands still for the evaluation of the average rank, of those that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bench.results.analysis.stream import sort
from bench.results.analysis.training import train_seconds
from ddp.core.figures.summary import EpochFold
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Evaluated, Finished, Lost, Progress, Ready
from ddp.core.messages.join_events import Joined


def ready(at: float, rank: int) -> Ready:
    return Ready(at, rank, 200, 10, "d", "cpu", "gloo")


def trained(at: float, rank: int, samples: int) -> Progress:
    return Progress(at, rank, 0, samples // 10, samples, 1.0, 1.0, 0.1)


def evaluated(end: float, rank: int, part: int = 0) -> Evaluated:
    return Evaluated(end, rank, 0, 10, loss_sum=1.0, metric_sum=1.0, seconds=10.0, part=part)


def came_late() -> list[Any]:
    """Of four ranks three come at 1 s; all train until 11 s, evaluate until 21 s, and end at 22 s."""
    late = [Joined(1.0, rank, 0) for rank in (1, 2, 3)]
    reports = [trained(11.0, rank, 50) for rank in range(4)]
    return [ready(0.0, 0), *late, *reports, *(evaluated(21.0, rank, rank) for rank in range(4))]


def left_alone() -> list[Any]:
    """Of two ranks one is lost at 1 s; the other trains 20 s and evaluates twice 10 s until 40 s."""
    lost = [Lost(1.0, 1, "gone"), Drop(1, "gone")]
    return [ready(0.0, 0), ready(0.0, 1), *lost, trained(20.0, 0, 200), evaluated(30.0, 0), evaluated(40.0, 0, 1)]


@pytest.mark.parametrize(("records", "ended", "seconds"), [(came_late(), 22.0, 12.0), (left_alone(), 40.0, 20.0)])
def test_it_stands_still_for_the_ranks_that_are_there(records: Sequence[Any], ended: float, seconds: float) -> None:
    stream = sort([*records, Finished(ended, 0, "d", 1, 1)], 0.0)
    assert train_seconds(stream) == pytest.approx(seconds)
    assert stream.clock is not None
    assert stream.clock.evaluated(ended) == pytest.approx(ended - seconds)


def test_epochs_are_measured_by_the_same_clock() -> None:
    fold = EpochFold(2)
    for record in [*came_late(), Progress(22.0, 0, 1, 1, 10, 1.0, 1.0, 0.1)]:
        fold.add(record)
    (last,) = fold.current()
    assert last.seconds == pytest.approx(12.0)
