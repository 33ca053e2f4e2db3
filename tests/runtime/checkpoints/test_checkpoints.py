"""Checkpoints and going on from them, in real processes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddp.backends import paired_backends
from ddp.comm.heartbeat import Heartbeat
from ddp.core.grants import shared_grants
from ddp.core.messages.commands import CoordinatorCheckpoint, Drop, Publish, Shorten
from ddp.core.messages.events import Finished, Merged, Saved
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import parse
from ddp.engine import rank
from ddp.engine.loop import TrainingLoop
from ddp.process import termination
from tests.runtime import toy
from tests.runtime.averaging.scripted_ranks import OWN
from tests.runtime.conftest import Play, Played, spying
from tests.slow import few, slow

pytestmark = pytest.mark.usefixtures("in_process")

SYNC = [("sync", "nccl"), ("sync", "cpu")]
ADAM = {"optimizer": "Adam", "lr": 0.01, "norm": True, "schedule": toy.rising_schedule}
STEADY = ADAM | {"schedule": toy.flat_schedule}


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*"))


def play_on(play: Play, whole: Played, place: Path, **fields: Any) -> Played:
    """The rest of a run, from a checkpoint of it."""
    job = whole.job
    names = ("task", "epochs", "world_size", "batch_size", "averaging", "speeds", "checkpoints")
    again = {name: getattr(job, name) for name in names} | {"checkpoint_folder": place.parent.parent / "again"}
    policy = next(name for name, kind in POLICIES.items() if type(job.policy) is kind)
    options = vars(job.policy)
    return play(policy, job.backend, resume=place, options=options, **again | fields)


def merged(records: list[Any]) -> Counter[tuple[int, int]]:
    spans = [(event.epoch, span) for event in records if isinstance(event, Merged) for span in event.spans]
    return Counter((epoch, position) for epoch, (start, stop) in spans for position in range(start, stop))


@pytest.mark.parametrize(
    ("policy", "backend", "size"), [*((*pair, 3) for pair in SYNC), ("sync", "nccl", 1)], ids=["nccl", "cpu", "solo"]
)
@pytest.mark.parametrize("every", [*slow(((1, "epochs"),)), (4, "averages")], ids=str)
def test_synchronous_modes_go_on_bit_for_bit(play, tmp_path, policy, backend, size, every):
    whole = play(
        policy,
        backend,
        spying(tmp_path, **ADAM),
        world_size=size,
        epochs=3,
        checkpoints=Checkpointing(*every, spacing_s=0.0),
        checkpoint_folder=tmp_path / "kept",
    )
    assert len(kept(tmp_path / "kept")) == 2
    for place in kept(tmp_path / "kept"):
        rest = play_on(play, whole, place)
        assert rest.digests == whole.digests
        assert len(rest.of(Finished)) == size


@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_what_is_in_the_model_and_what_is_trained_after_it_make_every_epoch_once(play, tmp_path, policy, backend):
    whole = play(
        policy,
        backend,
        epochs=3,
        options=toy.short_windows(policy),
        speeds=(1.0, 0.5),
        checkpoints=Checkpointing(2, "averages", spacing_s=0.0),  # a slow machine makes few averages, of an epoch each
        checkpoint_folder=tmp_path / "kept",
    )
    orders = [record for record in whole.records if isinstance(record, Publish)]
    assert orders
    assert all(len(event.files) + len(event.error) in (1, 2) for event in whole.of(Saved))
    for order, place in zip(orders[-2:], kept(tmp_path / "kept"), strict=True):
        before = whole.records[: whole.records.index(order)]
        rest = play_on(play, whole, place)
        assert set((merged(before) + merged(rest.records)).values()) == {1}
        assert sum((merged(before) + merged(rest.records)).values()) == 3 * toy.SAMPLES
        assert sum(merged(before).values()) == order.coordinator.samples
        assert rest.accuracy() > 0.8


KEPT = (
    {"outer": "nesterov"},
    {"outer": "momentum", "optimizer_state": True},
    {"optimizer_reset": True},
    {"wire": "float32"},
)


@pytest.mark.parametrize(("settings", "backend"), few(KEPT, OWN), ids=str)
def test_what_averaging_keeps_from_round_to_round_is_kept(play, tmp_path, backend, settings):
    # With windows of fixed counts and a constant rate, nothing depends on who is faster.
    whole = play(
        "sync" if backend == "cpu" else "cadence",
        backend,
        spying(tmp_path, **STEADY),
        options={} if backend == "cpu" else {"anchor": 2, "max_anchor": 2, "max_batch_diff": 0},
        averaging=Averaging(**settings),
        checkpoints=Checkpointing(4, "averages", spacing_s=0.0),
        checkpoint_folder=tmp_path / "kept",
    )
    for place in kept(tmp_path / "kept"):
        assert play_on(play, whole, place).digests == whole.digests


@pytest.mark.parametrize(
    ("early", "told"),
    [(0, ([], [0, 1, 2], [0, 2])), (1, ([], [0, 1, 2])), (4, ([0, 1, 2],))],
    ids=["together", "just after", "between order and end"],
)
@pytest.mark.parametrize("restarts", [0, None])
def test_a_rank_lost_when_the_end_is_announced_costs_no_checkpoint(play, tmp_path, monkeypatch, early, told, restarts):
    """The exchange breaks before, or after, the grants are cut for it. What goes on from it trains the rest once.

    `told`: the ranks whose grants may be cut: all before the loss, or the others once they have met again. None is told
    twice, and nobody whose exchange is to break."""
    lost_at, samples, records = 12, 2000, []
    train = TrainingLoop.train

    def announcing(loop: TrainingLoop, step: Any) -> None:
        loop.report_s = 0.0  # after each step, however long steps take: what was reported decides when grants are cut
        if loop.rank == 0 and loop.total_steps == lost_at - early and not kept(tmp_path / "kept"):
            termination.announce()
        train(loop, step)

    monkeypatch.setattr(TrainingLoop, "train", announcing)
    monkeypatch.setattr(shared_grants, "WATCH_S", 0.0)
    every = {"checkpoints": Checkpointing(1, "epochs", 1e6), "checkpoint_folder": tmp_path / "kept"}
    job = {"task": partial(toy.task, samples=samples), "world_size": 3, "epochs": 1, **every}
    try:
        with pytest.raises(KeyboardInterrupt):
            play("sync", "nccl", faults=(parse(f"1@{lost_at}:raise"),), restarts=restarts, records=records, **job)
    finally:
        termination.withdraw()
    assert [record.rank for record in records if isinstance(record, Drop)] == [1]
    orders = [record for record in records if isinstance(record, Shorten)]
    assert sorted(order.rank for order in orders) in told
    done = merged(records)
    assert done.total() == (orders[0].stop if len(orders) == 2 else lost_at * 24), (
        "where they met, or their grants ended"
    )
    (place,) = kept(tmp_path / "kept")
    rest = play("sync", "nccl", resume=place, **job)
    assert set((done + merged(rest.records)).values()) == {1}
    assert (done + merged(rest.records)).total() == samples


def test_books_tell_how_far_the_model_is():
    books = CoordinatorCheckpoint(10, 3, (), 0, 0, None, None)
    assert (books.epochs, books.samples) == (3, 30)


def test_a_rank_gives_signs_of_life_while_it_writes_or_reads_the_whole_state(play, tmp_path, monkeypatch):
    """A part that took longer than the deadline cost the rank its life, and the checkpoint with it."""
    alive: dict[str, set[bool]] = {}
    hearts: dict[Heartbeat, Heartbeat] = {}
    limited = Heartbeat.limited

    def noted(heart: Heartbeat, most: int) -> Heartbeat:
        hearts[heart] = limited(heart, most)
        return hearts[heart]

    monkeypatch.setattr(Heartbeat, "limited", noted)

    def watched(name: str, does: Any) -> Any:
        def watching(*given: Any) -> Any:
            loop = next(each for each in given if isinstance(each, TrainingLoop))
            alive.setdefault(name, set()).add(hearts[loop.heart]._within == 1)
            return does(*given)

        return watching

    places: list[tuple[Any, str]] = [
        (TrainingLoop, "save"),
        (TrainingLoop, "finish"),
        (rank, "send"),
        (rank, "load_sent"),
    ]
    for place, name in places:
        monkeypatch.setattr(place, name, watched(name, getattr(place, name)))
    every = {"checkpoints": Checkpointing(2, "averages", spacing_s=0.0), "checkpoint_folder": tmp_path / "kept"}
    play("sync", "nccl", epochs=6, restarts=None, world_size=3, faults=(parse("1@5:raise"),), **every)
    assert alive == {name: {True} for _, name in places}
