"""From records to the metrics of an epoch: pure."""

from __future__ import annotations

from typing import Any

import pytest

from ddp.core.figures.summary import EpochFold
from ddp.core.messages.commands import Evaluate
from ddp.core.messages.events import Evaluated, Lost, Progress, Ready
from ddp.trainer.epochs import EpochMetrics, epoch_metrics

pytestmark = pytest.mark.usefixtures("in_process")


def play(*records: Any) -> list[list[EpochMetrics]]:
    fold, before, given = begun(), 0.0, []
    for record in records:
        given.append([])
        for figures in fold.add(record):
            given[-1].append(epoch_metrics(figures, before, ("cpu", "cuda:1")))
            before = figures.seconds
    return given


def begun(epochs: int = 3) -> EpochFold:
    book = EpochFold(epochs)
    book.add(Ready(10.0, 0, 40, 5, "d", "cpu", "gloo"))
    book.add(Ready(11.0, 1, 40, 5, "d", "cuda:1", "gloo"))
    return book


def ordered(epoch: int) -> list[Evaluate]:
    return [Evaluate(rank, epoch, rank, 2, False, "complete") for rank in range(2)]


def test_an_epoch_is_given_out_with_its_last_evaluation() -> None:
    *early, last = play(
        Progress(12.0, 0, 0, 3, 24, 0.9, 48.0, 0.1, (("acc", 3.0, 3),)),
        Progress(12.5, 1, 0, 1, 8, 0.9, 8.0, 0.1, (("acc", 0.0, 1), ("other", None, 1))),
        *ordered(0),
        Evaluated(13.0, 0, 0, 30, 60.0, 15.0, 1.0),
        Evaluated(13.5, 1, 0, 10, 20.0, 10.0, 0.5, 1),
    )
    assert not any(early)
    (row,) = last
    assert (row.epoch, row.samples, row.lr, row.devices) == (0, 32, 0.1, ("cpu", "cuda:1"))
    assert (row.loss, row.eval, row.eval_loss) == (56 / 32, 25 / 40, 2.0)
    assert row.scalars == {"acc": 0.75, "other": None}
    assert row.per_rank_scalars == ({"acc": 1.0}, {"acc": 0.0, "other": None})
    assert row.per_rank_batch_share == (0.75, 0.25)
    # Ready at 11, the last report at 12.5, when the evaluation of the other had stopped half of the clock for 0.5 s.
    assert row.seconds == pytest.approx(1.25)
    assert row.per_rank_throughput == (pytest.approx(24 / 1.25), pytest.approx(8 / 1.25))


def test_an_epoch_takes_time_though_a_rank_evaluates_the_one_before_late() -> None:
    """Rank 1 came to its part of epoch 0 when rank 0 had trained epoch 1 alone: that had taken 0 s."""
    given = play(
        Progress(12.0, 0, 0, 3, 24, 0.9, 48.0, 0.1),
        Progress(12.0, 1, 0, 2, 16, 0.9, 48.0, 0.1),
        *ordered(0),
        *ordered(1),
        Evaluated(12.5, 0, 0, 20, 1.0, 5.0, 0.5),
        Progress(13.0, 0, 1, 5, 40, 0.5, 48.0, 0.1),
        Evaluated(13.5, 0, 1, 20, 1.0, 5.0, 0.5),
        Evaluated(13.5, 1, 0, 20, 1.0, 5.0, 0.5, 1),
        Evaluated(14.0, 1, 1, 20, 1.0, 5.0, 0.5, 1),
    )
    first, second = (row for rows in given for row in rows)
    assert (first.seconds, second.seconds) == (pytest.approx(1.0), pytest.approx(0.75))
    assert second.per_rank_throughput == (pytest.approx(40 / 0.75), 0.0)


def test_what_a_rank_trains_while_another_evaluates_counts_for_later_however_much_it_is() -> None:
    fold = begun()
    for rank in (0, 1):
        fold.add(Progress(12.0, rank, 0, 1, 8, 0.9, 8.0, 0.1))
    fold.add(Evaluate(0, 0, 0, 1, False, "complete"))
    for step in range(6000):
        fold.add(Progress(13.0 + 0.02 * step, 1, 1, 1, 8, 0.01, 8.0, 0.1))
    (row,) = fold.add(Evaluated(200.0, 0, 0, 40, 1.0, 5.0, 187.5))
    assert (row.epoch, row.at, row.seen) == (0, 12.5, 16)


def test_epochs_come_in_order_though_a_rank_runs_ahead() -> None:
    given = play(
        Progress(12.0, 0, 0, 1, 8, 0.9, 8.0, 0.1),
        Progress(12.1, 1, 0, 1, 8, 0.9, 8.0, 0.1),
        Progress(12.2, 1, 1, 1, 8, 0.9, 8.0, 0.1),
        *ordered(0),
        *ordered(1),
        Evaluated(13.0, 1, 0, 10, 1.0, 5.0, 0.1, 1),
        Evaluated(13.2, 1, 1, 10, 1.0, 6.0, 0.1, 1),
        Evaluated(13.4, 0, 0, 10, 1.0, 7.0, 0.1),
        Evaluated(13.6, 0, 1, 10, 1.0, 8.0, 0.1),
    )
    assert [[row.epoch for row in rows] for rows in given] == [[]] * 9 + [[0], [1]]
    assert given[-1][0].samples == 8
    assert given[-1][0].eval == 14 / 20


def test_half_an_evaluation_is_none_and_the_epoch_complete_without_the_lost_rank() -> None:
    *_, rows = play(
        Progress(12.0, 0, 0, 1, 8, 0.9, 8.0, 0.1),
        *ordered(0),
        Evaluated(13.0, 0, 0, 10, 1.0, 5.0, 0.1),
        Lost(14.0, 1, "gone"),
    )
    assert [(row.epoch, row.eval, row.loss) for row in rows] == [(0, None, 1.0)]


def test_a_loss_that_is_not_finite_is_none() -> None:
    order = Evaluate(0, 0, 0, 1, False, "complete")
    *_, rows = play(Progress(12.0, 0, 0, 1, 8, 0.9, None, 0.1), order, Evaluated(13.0, 0, 0, 0, 0.0, 0.0, 0.0))
    assert [(row.loss, row.eval, row.eval_loss) for row in rows] == [(None, None, None)]


@pytest.mark.parametrize("late", [False, True])
def test_what_a_lost_rank_left_of_the_last_evaluation_is_waited_for(late: bool) -> None:
    """A survivor does it, as the model is still there. The lost rank's own answer may come after all, and counts once."""
    book = begun(epochs=1)
    records = [
        Progress(12.0, 0, 0, 1, 8, 0.9, 8.0, 0.1),
        *ordered(0),
        Evaluated(13.0, 0, 0, 10, 1.0, 5.0, 0.1),
        Lost(14.0, 1, "gone"),
        Evaluate(0, 0, 1, 2, False, "complete"),
        *([Evaluated(14.5, 1, 0, 30, 1.0, 9.0, 0.1, 1)] if late else []),
    ]
    assert not any(map(book.add, records))
    (row,) = book.add(Evaluated(15.0, 0, 0, 30, 1.0, 9.0, 0.1, 1))
    assert (row.eval, row.loss) == (14 / 40, 1.0)
    assert book.end() == []


def test_a_last_evaluation_that_stays_incomplete_is_given_out_at_the_end() -> None:
    book = begun(epochs=1)
    for record in (Progress(12.0, 0, 0, 1, 8, 0.9, 8.0, 0.1), *ordered(0), Evaluated(13.0, 0, 0, 10, 1.0, 5.0, 0.1)):
        assert book.add(record) == []
    assert book.end() == [], "a part of it is under way"
    assert book.add(Lost(14.0, 1, "gone")) == []
    assert [(row.epoch, row.eval, row.loss) for row in book.end()] == [(0, None, 1.0)]


def test_an_epoch_waits_for_the_orders_of_all_parts() -> None:
    """Records are in the order of their times. An answer came before the order of the other part, and the epoch had no
    metric."""
    trained = [Progress(12.0, rank, 0, 3, 20, 0.9, 48.0, 0.1) for rank in range(2)]
    (one, other), parts = ordered(0), [Evaluated(13.0, rank, 0, 20, 5.0, 16.0, 0.1, part=rank) for rank in range(2)]
    *early, (epoch,) = play(*trained, one, parts[0], other, parts[1])
    assert early == [[]] * 5
    assert epoch.eval == 0.8
