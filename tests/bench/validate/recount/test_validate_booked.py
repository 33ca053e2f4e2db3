"""What is booked as trained, granted and evaluated was: defects put into the records of real runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.runfolder import Run, find_runs
from bench.validate.checks import evaluation, ledger
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from bench.validate.recount.identity import identity
from bench.validate.recount.rounds import entered
from ddp.core.messages.commands import LoadState, Train
from ddp.core.messages.events import Resumed

RECORDED = Path(__file__).parents[4] / "benchmarks/golden/recorded"
LOST = "lenet/cpu_async"
"""Its rank 1 was lost in epoch 2."""
Change = Callable[[Records], Records]


def recorded(name: str) -> tuple[Run, Records]:
    """A run and what it recorded."""
    (run,) = find_runs(RECORDED / name)[0]
    known = records(run, lost=True)
    assert known is not None
    return run, known


def unreported(rank: int, epoch: int) -> Change:
    """Leave out a rank's first report of an epoch."""

    def change(known: Records) -> Records:
        place = next(n for n, event in enumerate(known.progress) if (event.rank, event.epoch) == (rank, epoch))
        return replace(known, progress=known.progress[:place] + known.progress[place + 1 :])

    return change


def loaded(known: Records) -> Records:
    return replace(unreported(0, 2)(known), loads=[LoadState(0, 7, "it was a step behind")])


def resumed(known: Records) -> Records:
    return replace(unreported(0, 2)(known), resumed=[Resumed(known.closed[-1].at + 1, 0, 4, 0, "there")])


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda known: known, ""),
        (unreported(0, 2), "rank 0, epoch 2: 64 samples entered the model that it never reported"),
        (unreported(1, 1), ""),
        (loaded, ""),
        (resumed, ""),
    ],
)
def test_what_entered_the_model_was_reported(change: Change, wrong: str) -> None:
    """After a loss a whole global batch was skipped, and booked as trained."""
    run, known = recorded(LOST)
    assert ledger._booked(run, change(known)) == wrong


@pytest.mark.parametrize("name", ["mlp/nccl_sync", "mlp/nccl_cadence", "mlp/cpu_async"])
@pytest.mark.parametrize("place", [0, -1])
def test_batches_have_the_size_that_is_set(name: str, place: int) -> None:
    """The global batch shrank with the ranks that were left."""
    run, known = recorded(name)
    assert ledger._booked(run, known) == ""
    grants = [n for n, (_, order) in enumerate(known.work) if isinstance(order, Train)]
    at, order = known.work[grants[place]]
    assert isinstance(order, Train)
    due, half = order.chunk.batch, order.chunk.batch // 2
    known.work[grants[place]] = at, replace(order, chunk=replace(order.chunk, batch=half))
    found = ledger._booked(run, known)
    known.work[grants[place]] = at, order  # records are read once
    whose = f"rank {order.rank}, epoch {order.chunk.epoch}"
    assert found == f"{whose}: batches of {half} samples were granted, {due} are set"


def entered_at_once(known: Records) -> Records:
    """What rank 1 had trained since its last snapshot entered the model as it was lost."""
    more = replace(known.merged[-1], at=known.lost[0].at, rank=1, spans=((0, 64),))
    return replace(known, merged=[*known.merged, more])


def entered_later(known: Records) -> Records:
    """The same, with the next average."""
    at = next(event.at for event in known.closed if event.at > known.lost[0].at)
    return replace(known, merged=[*known.merged, replace(entered_at_once(known).merged[-1], at=at)])


def not_averaged(known: Records) -> Records:
    """The coordinator left its last snapshot out of the average."""
    last = max(event.round for event in known.snapshots if event.rank == 1 and event.round in _rounds(known))
    orders = [replace(each, members=(0,)) if each.round == last else each for each in known.reduces]
    return replace(known, reduces=orders)


def _rounds(known: Records) -> set[int]:
    return {event.round for event in known.closed}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda known: known, ""),
        (entered_at_once, "samples of rank 1 in the model outside of a round is 64, but the records give 0"),
        (entered_later, "samples of rank 1 in the model is 64, but the records give 0"),
        (not_averaged, "round 2: samples of rank 1 in the model is 640, but the records give 0"),
    ],
)
def test_only_what_was_averaged_enters_the_model(change: Change, wrong: str) -> None:
    """What a lost rank had trained, and nobody averaged, counted as in the model."""
    _, known = recorded(LOST)
    found = next((figure.wrong for figure in entered(change(known)) if figure.wrong), "")
    assert wrong in found
    assert bool(wrong) == bool(found)


@pytest.mark.parametrize(("before", "wrong"), [(None, "epoch 1 was never evaluated"), (1, "epoch 1 "), (2, "")])
def test_each_epoch_is_evaluated(before: int | None, wrong: str) -> None:
    """One was left out, and nothing was said. `before`: complete epochs of the checkpoint that the run was resumed from."""
    run, known = recorded("mlp/nccl_cadence")
    gone_on = [] if before is None else [Resumed(0.0, 0, before, 0, "there")]
    known = replace(known, resumed=gone_on)
    assert evaluation._compared(run, known, None)[0] == ""
    kept = [event for event in known.evaluated if event.epoch != 1]
    found = evaluation._compared(run, replace(known, evaluated=kept), None)[0]
    assert wrong in found
    assert bool(wrong) == bool(found)


@pytest.mark.parametrize(("samples", "resized", "wrong"), [(15, False, False), (14, False, True), (14, True, False)])
def test_an_epoch_has_the_steps_that_are_set(samples: int, resized: bool, wrong: bool) -> None:
    """Of 61 steps 60 were trained. `samples`: those of an epoch, in steps of all ranks."""
    run, known = recorded("mlp/nccl_cadence")
    known = replace(known, ready=[replace(event, samples=samples * 128) for event in known.ready])
    config = run.config | {"train": run.config["train"] | {"steps": 61}, "resized": [{}] if resized else None}
    found = [each.wrong for each in identity(run.metrics, known, config) if each.name.startswith("samples in an epoch")]
    assert any(found) is wrong, found


@pytest.mark.parametrize(
    ("name", "more", "change", "wrong"),
    [
        ("mlp/solo", 0, {}, False),
        ("mlp/solo", 1088, {}, True),
        ("mlp/solo", -64, {}, True),
        ("mlp/nccl_sync", 64, {}, True),
        ("mlp/nccl_cadence", 64, {}, True),
        ("mlp/nccl_cadence", 64, {"resumed": [Resumed(0.0, 0, 1, 1438, "there")]}, False),
        ("mlp/nccl_async", 64, {}, False),
        ("mlp/cpu_cadence", 0, {}, False),
        ("mlp/cpu_async", 0, {}, False),
    ],
)
def test_each_epoch_is_evaluated_at_its_end(name: str, more: int, change: dict[str, Any], wrong: bool) -> None:
    """Epoch 2 was trained before epoch 1 was evaluated. `more`: samples that were trained too early."""
    run, known = recorded(name)
    rows = [row.model_copy(update={"samples": row.samples + more * (row.epoch == 1)}) for row in run.metrics.epochs]
    run = replace(run, metrics=run.metrics.model_copy(update={"epochs": rows, "schema_version": 8}))
    found = evaluation._compared(run, replace(known, **change), None)[0]
    assert found == (
        f"epoch 1 was evaluated after {2876 + more} samples of the run, but ends after 2876" if wrong else ""
    )


@pytest.mark.parametrize(
    ("name", "samples", "change", "wrong"),
    [
        ("mlp/nccl_sync", 0, {}, ""),
        ("mlp/nccl_cadence", 0, {}, ""),
        ("mlp/nccl_async", 0, {}, ""),
        ("mlp/nccl_sync", 64, {}, "rank 1, epoch 1: 64 samples trained twice, as the model was ahead of"),
        ("mlp/nccl_sync", -64, {}, "rank 1, epoch 1: 64 samples never trained, as the model was behind"),
        ("mlp/nccl_sync", 64, {"resumed": []}, ""),
        ("mlp/nccl_sync", 64, {"loads": [LoadState(0, 7, "it was a step behind")]}, ""),
        ("mlp/cpu_cadence", 64, {}, ""),
    ],
)
def test_a_checkpoint_holds_what_was_reported_before(
    name: str, samples: int, change: dict[str, Any], wrong: str
) -> None:
    """The coordinator's part of a checkpoint was older than the model's, so samples between the two were trained again."""
    run, known = recorded(name)
    place = next(n for n, event in enumerate(known.progress) if (event.rank, event.epoch) == (1, 1))
    event = known.progress[place]
    progress = [*known.progress]
    progress[place] = replace(event, samples=event.samples + samples)
    gone_on = [Resumed(known.closed[-1].at + 1 if known.closed else event.at + 1, 0, 2, 2876, "there")]
    found = ledger._ahead(run, replace(known, **({"progress": progress, "resumed": gone_on} | change)))
    assert found.startswith(wrong)
    assert bool(found) is bool(wrong)
