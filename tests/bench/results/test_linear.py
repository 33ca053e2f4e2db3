"""What is made of the records of a run looks at each of them a bounded number of times, however many there are: twice the
epochs and rounds are twice the work. Counted, not timed: `benchmarks/test_linear.py` has the seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from bench.dashboard.view import row
from bench.results.analysis.stream import sort
from bench.results.live.history import POINTS
from bench.runner.earlier_records import _Counting
from bench.timeline import write_timeline
from ddp.core.figures.summary import EpochFold
from ddp.core.figures.training_clock import Evaluation, TrainingClock
from ddp.core.messages import events
from ddp.core.messages.commands import CoordinatorCheckpoint, Drop, Evaluate
from ddp.core.samples.ledger import Ledger
from ddp.process.codec import Record
from tests.bench.dashboard.test_dashboard_fold import about, folded
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec

MOST = 18
"""Looks at a record by the analysis."""
GROWTH = 4
"""The larger run has so many times the epochs of the smaller one, and as many rounds in each."""
SLACK = 1.1
"""What logarithms may add."""


class Reads:
    """How often something of a record was looked at."""

    count = 0


class Stop(Evaluation):
    """An evaluation on the training clock, whose looks count."""

    def __getitem__(self, place: Any) -> Any:
        Reads.count += 1
        return super().__getitem__(place)

    def __getattribute__(self, name: str) -> Any:
        Reads.count += name in Evaluation._fields
        return super().__getattribute__(name)


@cache
def _counting(kind: type[Any]) -> type[Any]:
    """A subclass whose fields count when they are read."""
    names = {field.name for field in fields(kind)}

    def read(self: Any, name: str) -> Any:
        if name in names:
            Reads.count += 1
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read})


def watched(records: Sequence[Record]) -> list[Any]:
    """The same records, of which every look is counted."""
    made = []
    for record in records:
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        made.append(_counting(type(record))(**values) if hasattr(record, "at") else record)
    return made


def reads(work: Callable[[], object]) -> int:
    """How many looks `work` takes."""
    Reads.count = 0
    work()
    return Reads.count


def linear(small: int, large: int) -> bool:
    return 0 < large <= SLACK * GROWTH * small


def made(mode: str, epochs: int, **changes: Any) -> tuple[Any, list[Any]]:
    spec = make_spec(mode, epochs=epochs, **changes)
    return spec, watched(make_records(spec, windows=3, steps=1))


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "nccl_cadence"])
def test_analysis(mode: str) -> None:
    counts = [reads(partial(make_metrics, *made(mode, epochs))) for epochs in (20, GROWTH * 20)]
    assert linear(*counts), counts


def test_analysis_of_a_run_that_lost_ranks() -> None:
    """Each lost rank asks what was kept of its samples: of as many records, as many looks, however many were lost."""

    def run(ranks: int) -> float:
        spec = make_spec("nccl_cadence", world_size=ranks, epochs=2)
        records = watched(make_records(spec, windows=160 // ranks, steps=1))
        lost = [Drop(rank, "silent for 1 s") for rank in range(1, ranks)]
        return reads(lambda: make_metrics(spec, [*records, *lost])) / len(records)

    assert run(16) <= SLACK * run(2) < MOST


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "nccl_cadence"])
def test_timeline(mode: str, tmp_path: Path) -> None:
    counts = []
    for epochs in (20, GROWTH * 20):
        spec, records = made(mode, epochs)
        counts.append(reads(partial(write_timeline, tmp_path, records, spec, LAUNCHED, picture=False)))
    assert linear(*counts), counts


def test_clock() -> None:
    """The training clock, asked once an epoch."""

    def run(epochs: int) -> int:
        spec, records = made("nccl_cadence", epochs)
        held = sort(records, LAUNCHED).of(events.Evaluated)
        times = [object.__getattribute__(event, "at") for event in held]

        clock = TrainingClock(LAUNCHED, [Stop(event.at, event.seconds, spec.world_size) for event in held])
        return reads(lambda: [clock.at(time) for time in times])

    assert linear(run(20), run(GROWTH * 20))


@pytest.mark.parametrize("time", [-1.0, 0.0, 0.5, 1.0, 2.5, 3.0, 3.2, 4.0, 5.0, 9.0])
def test_clock_is_the_wall_less_the_evaluation(time: float) -> None:
    """Of two ranks, and of the one that is left behind 3.5 s."""
    held = [Evaluation(3.0, 2.0, 2), Evaluation(3.5, 0.5, 2), Evaluation(4.0, 0.25, 1), Evaluation(5.0, 0.0, 1)]
    stopped = sum(min(max(time - (each.end - each.seconds), 0.0), each.seconds) / each.ranks for each in held)
    assert TrainingClock(0.5, held).at(time) == pytest.approx(max(time - 0.5 - stopped, 0.0))


def test_epochs_of_a_trainer() -> None:
    def run(epochs: int) -> int:
        _, records = made("nccl_cadence", epochs)
        book = EpochFold(epochs)
        told: list[Any] = []
        for record in records:
            if isinstance(record, events.Evaluated) and record.rank == 0:
                told += [Evaluate(rank, record.epoch, rank, 2, False, "an epoch is over") for rank in range(2)]
            told.append(record)
        return reads(lambda: [book.add(record) for record in told])

    assert linear(run(20), run(GROWTH * 20))


def test_what_ranks_recorded_is_added_up_in_one_pass() -> None:
    """Of an epoch, whatever the number of ranks."""

    def run(ranks: int) -> int:
        trained = [
            _counting(events.Progress)(0.0, n % ranks, 0, 1, 1, 0.1, 1.0, 0.1, (("a", 1.0, 1),)) for n in range(160)
        ]
        fold = EpochFold()
        return reads(lambda: [*map(fold.add, trained), fold.current()])

    assert run(2) == run(16) > 0


def test_state_of_the_page_is_bounded() -> None:
    """An epoch, too, is a point that can be thinned out; that it was there is still counted."""
    records, epochs = list[Record](), 2 * POINTS + 50
    for number in range(epochs):
        at = 1.0 + number
        records.append(events.Progress(at, 0, number, 1, 10, 0.1, 5.0, 0.1))
        records.append(events.Evaluated(at + 0.5, 0, number, 10, 1.0, 5.0, 0.1))
    state = folded(records)
    assert len(state.epochs) <= POINTS
    assert (state.epochs[0].epoch, state.epochs[-1].epoch) == (0, epochs - 1)
    assert row(about(), state)["epoch"] == epochs


def test_what_a_checkpoint_holds_is_found_without_a_look_at_all_of_it() -> None:
    """Of many spans with gaps between them."""

    class Spans(tuple[Any, ...]):
        looks = 0

        def __getitem__(self, place: Any) -> Any:
            Spans.looks += 1
            return super().__getitem__(place)

        def __iter__(self) -> Any:
            for span in super().__iter__():
                Spans.looks += 1
                yield span

    def run(spans: int) -> int:
        held = Spans((4 * n, 4 * n + 2) for n in range(spans))
        books = _books(Ledger(1, 4 * spans, merged=held))
        counts = _Counting(books, {})
        Spans.looks = 0
        for n in range(spans):
            assert counts(events.Merged(1.0, 0, 1, ((4 * n, 4 * n + 2),)))
            assert not counts(events.Merged(1.0, 0, 1, ((4 * n + 1, 4 * n + 3),)))
            assert not counts(events.Merged(1.0, 0, 1, ((4 * n + 2, 4 * n + 3),)))
        return Spans.looks

    small, large = run(64), run(GROWTH * 64)
    assert small < 3 * 64 * 12
    assert large <= 1.5 * GROWTH * small


def _books(ledger: Ledger) -> CoordinatorCheckpoint:
    return CoordinatorCheckpoint(
        epoch_samples=0, begun=2, ledgers=(ledger,), rounds=0, saves=0, policy_state=None, plan=None
    )
