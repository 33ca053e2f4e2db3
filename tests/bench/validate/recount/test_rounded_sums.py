"""No verdict depends on how a sum is rounded: on when reports are due, how Python adds up, or how values cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.analysis import breakdown, goodput
from bench.results.analysis.stream import RunRecords, Slices
from bench.results.recompute import ROUNDING, differences
from bench.results.runfolder import find_runs
from bench.results.schema import Metrics, ResumedFrom
from bench.runner import replay
from bench.validate.baselines.reference import Sets
from bench.validate.checks.determinism import promised, unlike
from bench.validate.checks.evaluation import _amiss
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from ddp.core.figures.exact_means import Mean
from ddp.core.messages.event_parts import SetContent
from ddp.core.messages.events import Evaluated, Finished, Ready, RoundClosed
from ddp.core.messages.measurements import Slice
from ddp.tally import MODULUS
from tests.bench.references import one
from tests.bench.streams import make_metrics, make_spec
from tests.bench.validate.told import DATA, baseline, each, write


@cache
def solo() -> Metrics:
    return make_metrics(make_spec("solo"))


RUN: Any = None
LOSSES = st.lists(st.floats(1e-2, 1e3), min_size=1, max_size=60)


def mean(losses: Sequence[float], ends: Sequence[int]) -> float:
    """Return the mean loss of an epoch whose reports end at these steps, of 7 samples each."""
    found = Mean()
    for first, last in pairwise([0, *sorted(ends), len(losses)]):
        found.add(sum(7 * loss for loss in losses[first:last]), 7 * (last - first))
    assert found.value is not None
    return found.value


@given(LOSSES, st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_the_clock_that_cuts_reports_does_not_decide_whether_runs_are_equal(
    losses: list[float], ends: list[int], others: list[int]
) -> None:
    """Two runs of a model in double precision were DIFFERENT, though they had the same bits."""
    first, second = (mean(losses, [min(end, len(losses)) for end in cuts]) for cuts in (ends, others))
    m = solo()

    def losing(loss: float) -> Any:
        rows = [*m.epochs[:-1], m.epochs[-1].model_copy(update={"train_loss": loss})]
        return m.model_copy(update={"epochs": rows, "final": m.final.model_copy(update={"train_loss": loss})})

    assert unlike(losing(first), losing(second)) == []
    assert unlike(losing(first), losing(first * (1 + 1e-8))) != []


@pytest.mark.parametrize(
    ("device", "train", "bits"),
    [
        ("cpu", {}, True),
        ("cuda:0", {}, False),
        ("cuda:0", {"deterministic": None}, False),
        ("cuda:0", {"deterministic": True}, True),
    ],
)
def test_a_gpu_promises_bits_only_with_deterministic_algorithms(device: str, train: dict[str, Any], bits: bool) -> None:
    assert promised(make_metrics(make_spec("solo"), devices=[device]), {"train": train}) is bits


SECONDS = st.lists(st.floats(1e-7, 1.0), min_size=1, max_size=30)
KINDS = ("forward", "wait", "exchange", "evaluate", "data")


def test_a_resumed_run_is_equal_though_it_counts_the_collectives_of_the_rest_alone() -> None:
    """Beside an uninterrupted run of its seed it had failed."""
    whole = make_metrics(make_spec("nccl_sync"))
    again = ResumedFrom(source="", checkpoint=0, epochs=1, samples=1, seconds=1.0, times=1)
    sync = whole.sync.model_copy(update={"count": 1, "bytes": 1})
    rest = whole.model_copy(update={"resumed": again, "sync": sync})
    assert promised(rest, {})
    assert unlike(whole, rest) == unlike(rest, whole) == []
    assert len(unlike(whole, rest.model_copy(update={"resumed": None}))) == 2
    assert len(unlike(whole, rest.model_copy(update={"params_sha256": "other"}))) == 1
    resized = again.model_copy(update={"ranks": [4]})
    assert not promised(rest.model_copy(update={"resumed": resized}), {}), "other ranks add in another order"


@given(SECONDS)
def test_a_rest_of_nothing_is_the_same_however_python_adds_up(lengths: list[float]) -> None:
    """`sum` compensates rounding since Python 3.12. So the rest of a rank whose slices leave no gap was 0 there, and 1e-16
    where the run was made, and the run was REFUSED."""
    ends = np.cumsum([1e6, *lengths]).tolist()
    measured = [
        Slice(at, 0, KINDS[place % len(KINDS)], end - at, place)
        for place, (at, end) in enumerate(pairwise(ends))
        if end > at
    ]
    stream = RunRecords(Slices.of(measured))
    stream.ready[0] = Ready(ends[0], 0, 1, 1, "", "cpu", "")
    stream.finished[0] = Finished(ends[-1], 0, "", 1, 0)
    parts = dict.fromkeys(goodput.PARTS, 0.0) | dict.fromkeys(("kept", "waiting", "starting", "absent"), 0.1)

    def figures() -> dict[str, Any]:
        (row,) = breakdown.breakdown(stream, breakdown.walls(stream, 1))
        shares = goodput.projections(parts)
        assert shares is not None
        return {"breakdown": row.model_dump(), "goodput": shares.model_dump()}

    with pytest.MonkeyPatch.context() as patch:
        made = figures()
        for module in (breakdown, goodput):
            patch.setattr(module, "sum", math.fsum, raising=False)
        assert list(differences(made, figures(), slack=ROUNDING)) == []


def test_differences_beyond_rounding_are_still_found() -> None:
    assert list(differences(0.0, 1.2e-16, slack=ROUNDING)) == []
    for left, right, slack in (
        (0.0, 1e-9, ROUNDING),
        (1.0, 1 + 1e-8, ROUNDING),
        (0.0, 1e-300, 0.0),
        (1, 1.0, ROUNDING),
    ):
        assert len(list(differences(left, right, slack=slack))) == 1


@pytest.mark.parametrize(("factor", "equal"), [(1 + 2**-52, True), (1 + 1e-6, False)])
def test_a_replay_is_equal_up_to_the_rounding_of_sums(factor: float, equal: bool) -> None:
    """The core adds up losses of three ranks, which versions of Python round differently."""
    closed = RoundClosed(3.0, 1, (1,) * 3, (0.1,) * 3, 0.1, (0.0,) * 3, (math.nan,) * 3, (False,) * 3, loss=0.3)
    fields = {"at": 3.0, "round": 1, "steps": [1, 1, 1], "divergence": [None] * 3, "loss": 0.3 * factor}
    assert replay._equal(closed, closed, fields) is equal
    assert not replay._equal(closed, closed, fields | {"steps": [1, 1, 2]})


HUGE = 1e12


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Of a run whose test set has large values that cancel: two ranks have other sums than one."""
    root = tmp_path_factory.mktemp("cancelling")
    write(root, make_spec("nccl_sync"))
    (run,), _ = find_runs(root)
    made = records(run)
    assert made is not None
    return made


def evaluated(known: Records, content: float, hashes: int = 0) -> Records:
    """With another sum over the values of the last epoch, and of hashes."""

    def moved(event: Evaluated) -> Evaluated:
        own = ((event.hashes or 0) + hashes) % MODULUS
        return replace(event, content=content / 2, hashes=own) if event.epoch == 2 else replace(event, content=0.0)

    return replace(known, evaluated=[moved(event) for event in known.evaluated])


@pytest.mark.parametrize(
    ("content", "hashes", "wrong"), [(0.0, 0, False), (1e-5, 0, False), (1e-5, 1, True), (1e-2, 0, True)]
)
def test_large_values_that_cancel_may_be_rounded_in_another_order(
    known: Records, content: float, hashes: int, wrong: bool
) -> None:
    """Hashes show that the samples are the same."""
    assert DATA.test.samples == 100
    said = _amiss(None, RUN, evaluated(known, content, hashes))
    assert said.startswith("epoch 2: the evaluated samples are not") is wrong
    unhashed = replace(known, ready=[replace(event, data=None) for event in known.ready])
    assert bool(_amiss(None, RUN, evaluated(unhashed, content))) is (content > 0)


def of_drawn(known: Records) -> Records:
    """Of a test set that may differ at each reading."""
    data = replace(DATA, test=SetContent(DATA.test.samples))
    return replace(known, ready=[replace(event, data=data) for event in known.ready])


@pytest.mark.parametrize("sets", [None, Sets(training=1920, evaluated=100, content=0.0)])
def test_of_a_test_set_that_differs_at_each_reading_only_the_number_is_compared(
    known: Records, sets: Sets | None
) -> None:
    """One that draws from NumPy failed, as did one whose batches are padded to the longest sample in them."""
    drawn = of_drawn(evaluated(known, 7.0))
    assert _amiss(sets, RUN, drawn) != _amiss(sets, RUN, evaluated(known, 7.0))
    assert "evaluated samples are not" not in _amiss(sets, RUN, drawn)
    short = [replace(e, samples=e.samples - (e.rank == 1 and e.epoch == 2)) for e in drawn.evaluated]
    assert _amiss(sets, RUN, replace(drawn, evaluated=short)).startswith("epoch 2: 99 samples were evaluated")


def test_a_pass_says_that_only_the_number_was_compared(tmp_path: Path) -> None:
    base, data = baseline(tmp_path / "base"), replace(DATA, test=SetContent(DATA.test.samples))
    said = {}
    for name, own in (("known", DATA), ("drawn", data)):
        write(tmp_path / name, make_spec("nccl_sync"), each(Ready, partial(replace, data=own)))
        said[name] = one(tmp_path / name, base, "evaluation")
    assert {verdict.name for verdict in said.values()} == {"PASS"}
    assert "used the baseline's test set and" in said["known"].line
    assert "used as many samples as the baseline's test set has (they may differ at each reading" in said["drawn"].line
