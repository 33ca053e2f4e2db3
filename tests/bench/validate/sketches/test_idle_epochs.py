"""`idle` in each epoch: a tensor of a rank that stands still though another rank's moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.runfolder import find_runs
from bench.validate.checks.idle import _epochs, _gradients, _scarce, _windows
from bench.validate.records.run_records import Records
from ddp.core.messages.event_parts import StepSketch
from ddp.core.messages.events import Averaged, Finished, Progress, Ready
from tests.bench.streams import make_spec, write_run
from tests.bench.validate.sketched import GROUPS, put, sketch

LAST, ROUNDS = 2, 4
"""The last epoch; rounds of each."""
NOTHING = sketch(0.0, 0.0, 0.0, size=0.0)
Change = Callable[[str, int, int], str]
"""(sketch, rank, epoch) -> sketch."""


def same(text: str, rank: int, epoch: int) -> str:
    return text


def records(gradient: Change = same, after: Change = same, steps: int = 40, way: float = 0.1) -> Records:
    """Of two ranks and three epochs; in each round a replica moves by `way`, and the average moves it back by half of it.
    `after`: the replica when it was trained, in place of what it is."""
    ready = [Ready(0.0, rank, 10, 10, "", "cpu", "", sketched=() if rank else GROUPS) for rank in (0, 1)]
    progress, averaged, at = [], [], 0.0
    for round in range(ROUNDS * (LAST + 1)):
        epoch, at = round // ROUNDS, at + 1.0
        begun = sketch(*(way * round,) * 3, size=0.01)
        for rank in (0, 1):
            drawn = tuple(StepSketch(0, 16, 16, gradient(sketch(1.0, 1.0, 1.0), rank, epoch)) for _ in range(2))
            progress.append(Progress(at, rank, epoch, steps, 16, 1.0, 1.0, 0.1, after=round - 1, exchanged=drawn))
            own = sketch(*(way * round + 2 * way,) * 3, size=0.01)
            own = put(own, begun, [1]) if after(own, rank, epoch) != own else own
            then = sketch(*(way * (round + 1),) * 3, size=0.01)
            about = {"sketch_before": own, "sketch_after": then, "sketch_average": then}
            averaged.append(Averaged(at, rank, round, steps, 16, 0.1, 1, 0.1, **about))
    return Records(ready=ready, progress=progress, averaged=averaged)


def on_rank_1(change: Callable[[str], str], last: int = LAST) -> Change:
    """Of rank 1, from the first to the last of some epochs at the end."""
    return lambda text, rank, epoch: change(text) if rank == 1 and epoch >= last else text


def unused(text: str, rank: int, epoch: int) -> str:
    """On no rank in the last epoch."""
    return put(text, NOTHING, [1]) if epoch == LAST else text


def test_ranks_that_train_alike_pass() -> None:
    assert _epochs(records(), 2) == ""
    assert _epochs(records(gradient=unused, after=unused), 2) == ""


STANDS = on_rank_1(lambda text: put(text, NOTHING, [1]))


def test_a_tensor_without_gradients_in_the_last_epoch_is_named() -> None:
    wrong = _epochs(records(gradient=STANDS), 2)
    assert wrong == "rank 1, epoch 2: all of 8 gradients of head.bias are zero, but not those of rank 0"


def test_a_tensor_that_stands_still_in_the_last_epoch_is_named() -> None:
    wrong = _epochs(records(after=STANDS), 2)
    assert wrong == "rank 1, epoch 2: head.bias has gradients but did not move in 4 windows, as it did on rank 0"


@pytest.mark.parametrize(
    "change", [{"steps": 10}, {"way": 1e-9}, {"gradient": unused}], ids=["few", "slight", "unused"]
)
def test_what_chance_and_roundings_can_do_is_not(change: dict[str, Any]) -> None:
    """Few steps; moves that may be lost in roundings; a tensor that has no gradients there."""
    assert _epochs(records(after=STANDS, **change), 2) == ""


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_a_window_at_rate_0_need_not_move(rate: float) -> None:
    """A schedule may begin with it, and short runs have few windows."""
    known = records(way=0.0)
    at_rate = [replace(report, lr=rate) for report in known.progress]
    wrong = _windows(replace(known, progress=at_rate), 2)
    assert wrong == ("rank 0 reports steps, but its replica did not move in 11 of 11 windows" if rate else "")


@pytest.mark.parametrize(("rate", "still"), [(1e-8, 3), (0.1, 1), (0.1, 2)])
def test_the_end_of_a_schedule_may_be_too_slow_to_be_seen(rate: float, still: int) -> None:
    """A clean run failed, whose last window was one step at a millionth of the rate."""
    known = records()
    last = ROUNDS * (LAST + 1) - still
    stood = {(event.rank, event.round): event.sketch_after for event in known.averaged if event.round == last - 1}
    averaged = [
        replace(event, sketch_before=stood[event.rank, last - 1], sketch_after=stood[event.rank, last - 1])
        if event.round >= last
        else event
        for event in known.averaged
    ]
    progress = [replace(report, lr=rate) if (report.after or 0) >= last - 1 else report for report in known.progress]
    wrong = _windows(replace(known, averaged=averaged, progress=progress), 2)
    assert wrong == (
        "rank 0 reports steps, but its replica did not move in 2 of 11 windows" * (rate == 0.1 and still == 2)
    )


def test_an_optimizer_may_go_by_the_rate_of_the_step_before() -> None:
    known = records(way=0.0)
    at_rate = [replace(report, lr=0.0 if report.after == -1 else 0.1) for report in known.progress]
    assert "in 10 of 10 windows" in _windows(replace(known, progress=at_rate), 2)


def beyond_margin(known: Records, loss: float, ranks: tuple[int, ...] = (0, 1)) -> Records:
    """The same with replicas that end as they began, if all of `ranks` have no gradients and this loss."""
    steps = (StepSketch(0, 16, 16, NOTHING),) * 2
    progress = [
        replace(each, loss_sum=loss, exchanged=steps) if each.rank in ranks else each for each in known.progress
    ]
    ready = [replace(each, sketch=sketch(1.0, 1.0, 1.0)) for each in known.ready]
    finished = [Finished(99.0, rank, "", 1, 0, sketch=sketch(1.0, 1.0, 1.0)) for rank in (0, 1)]
    return replace(known, progress=progress, ready=ready, finished=finished)


def test_a_loss_of_0_needs_no_gradients_and_moves_nothing() -> None:
    """A clean run failed whose batches were all beyond the margin of its loss, or that began at the optimum."""
    known = beyond_margin(records(way=0.0), 0.0)
    assert _gradients(known, 2) == _windows(known, 2) == ""


def test_ranks_that_all_stand_still_at_a_loss_are_named() -> None:
    """No other rank moves to compare with."""
    known = beyond_margin(records(way=0.0), 1.0)
    assert _gradients(known, 2) == "rank 0 reports steps, but 24 of its 24 recorded gradients are zero"
    assert _windows(records(way=0.0), 2).endswith("its replica did not move in 11 of 11 windows")
    with_gradients = replace(known, progress=records().progress)
    assert _gradients(with_gradients, 2) == "body.weight has gradients, but its final value equals its initial value"


def test_a_rank_alone_without_gradients_at_a_loss_is_named() -> None:
    known = beyond_margin(records(), 1.0, ranks=(1,))
    assert _gradients(known, 2) == "rank 1 reports steps, but 24 of its 24 recorded gradients are zero"


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_a_loss_that_reaches_0_excuses_no_earlier_step(ranks: tuple[int, ...]) -> None:
    """One report of 0, or a model that weight decay moves, hid a rank that never contributed a gradient."""
    known = beyond_margin(records(), 1.0, ranks)
    last = [replace(each, loss_sum=0.0) if each.epoch == LAST else each for each in known.progress]
    moved = [replace(each, sketch=sketch(2.0, 2.0, 2.0)) for each in known.finished]
    wrong = f"rank {ranks[0]} reports steps, but 16 of its 16 recorded gradients are zero"
    assert _gradients(replace(known, progress=last, finished=moved), 2) == wrong


def at_times(rounds: dict[int, int], text: str = "") -> Change:
    """Gradients that are none in one of so many rounds of a rank; of `text`'s groups alone, if given."""
    count = [0, 0]

    def change(given: str, rank: int, epoch: int) -> str:
        count[rank] += 1
        left_out = count[rank] % 4 < rounds.get(rank, 0)
        return put(given, NOTHING, [1] if text else [0, 1, 2]) if left_out else given

    return change


@pytest.mark.parametrize(
    ("rounds", "wrong"), [({0: 2, 1: 2}, ""), ({1: 3}, "rank 1 reports steps, but 18 of its 24"), ({0: 3, 1: 2}, "")]
)
def test_losses_with_a_margin_have_no_gradients_on_any_rank(rounds: dict[int, int], wrong: str) -> None:
    assert _gradients(records(gradient=at_times(rounds)), 2).startswith(wrong or "")
    assert bool(_gradients(records(gradient=at_times(rounds)), 2)) == bool(wrong)


def test_a_branch_that_chance_takes_may_go_unused_on_one_rank() -> None:
    def branch(often: int) -> Change:
        some = at_times({0: often}, "branch")
        return lambda text, rank, epoch: put(text, NOTHING, [1]) if rank else some(text, rank, epoch)

    assert _gradients(records(gradient=branch(2)), 2) == ""
    assert "but not those of rank 0" in _gradients(records(gradient=branch(0)), 2)


def test_few_steps_prove_nothing_of_branches() -> None:
    """In four looked-at steps chance leaves a branch out on one rank, and takes it each time on another."""
    few = records(gradient=lambda text, rank, epoch: put(text, NOTHING, [1]) if rank else text)
    short = replace(few, progress=few.progress[:4])
    assert "but not those of rank 0" in _gradients(few, 2)
    assert _gradients(short, 2) == ""


@pytest.mark.parametrize(
    ("dtype", "rate", "must"),
    [
        ("float32", 1e-3, True),
        ("float32", 1e-9, False),
        ("float32", 0.0, False),
        ("bfloat16", 1e-3, False),
        ("bfloat16", 0.1, True),
    ],
)
def test_a_step_below_rounding_need_not_move_a_tensor(dtype: str, rate: float, must: bool) -> None:
    """The weights of a norm layer are 1: in bfloat16 the next number is 1.0078, beyond the reach of usual rates."""
    known, begun = records(), sketch(1.0, 1.0, 1.0, size=4.0)
    groups = tuple(replace(group, dtype=dtype) for group in GROUPS)
    ready = [replace(event, sketched=groups if event.sketched else (), sketch=begun) for event in known.ready]
    finished = [Finished(99.0, rank, "", 1, 0, sketch=begun) for rank in (0, 1)]
    progress = [replace(report, lr=rate) for report in known.progress]
    still = replace(known, ready=ready, finished=finished, progress=progress)
    assert _gradients(still, 2) == ("body.weight has gradients, but its final value equals its initial value" * must)


@pytest.mark.parametrize(
    ("batch", "by_rank", "advice"),
    [
        (
            256,
            [512, 512, 477, 0],
            "has 6 batches for 4 ranks, so some ranks train nothing: a batch size of 187 gives each rank a batch",
        ),
        (
            512,
            [512, 512, 477, 0],
            "has 3 batches for 4 ranks, so some ranks train nothing: a batch size of 500 gives each rank a batch",
        ),
        (256, [512, 477, 256, 256], ""),
        (64, [512, 512, 477, 0], ""),
    ],
)
def test_an_epoch_with_too_few_batches_is_said_to_be_that(
    tmp_path: Path, batch: int, by_rank: list[int], advice: str
) -> None:
    (run,), _ = find_runs(write_run(tmp_path, make_spec("nccl_cadence")))
    ledger = run.metrics.ledger
    assert ledger is not None
    row = ledger.epochs[0].model_copy(update={"by_rank": by_rank})
    about = {
        "world_size": 4,
        "batch_size": batch,
        "ledger": ledger.model_copy(update={"samples": 1501, "epochs": [row]}),
    }
    said = _scarce(replace(run, metrics=run.metrics.model_copy(update=about)))
    assert said == (f"an epoch of 1501 samples {advice}" if advice else "")
