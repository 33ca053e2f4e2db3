"""Checkpoints and going on from them, in real processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ddp.core.averaging import Averaging
from ddp.core.checkpointing import Checkpointing
from ddp.core.commands import Books, Publish
from ddp.core.events import Finished, Merged, Saved
from ddp.core.policies import POLICIES
from ddp.runtime.backends import BACKENDS
from tests.runtime import toy
from tests.runtime.conftest import Play, Played, spying

SYNC = [("sync", "nccl"), ("sync", "cpu")]
ADAM = {"optimizer": "Adam", "lr": 0.01, "norm": True, "schedule": toy.rising_schedule}


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*"))


def play_on(play: Play, whole: Played, place: Path, **fields: Any) -> Played:
    """The rest of a run, from a checkpoint of it."""
    job = whole.job
    names = ("task", "epochs", "world_size", "batch_size", "averaging", "speeds", "checkpoints")
    again = {name: getattr(job, name) for name in names} | {"checkpoint_folder": place.parent.parent / "again"}
    policy = next(name for name, kind in POLICIES.items() if type(job.policy) is kind)
    options = vars(job.policy) if policy != "sync" else {}
    return play(policy, job.backend, resume=place, options=options, **again | fields)


def merged(records: list[Any]) -> Counter[tuple[int, int]]:
    spans = [(event.epoch, span) for event in records if isinstance(event, Merged) for span in event.spans]
    return Counter((epoch, position) for epoch, (start, stop) in spans for position in range(start, stop))


@pytest.mark.parametrize(
    ("policy", "backend", "size"), [*((*pair, 3) for pair in SYNC), ("sync", "nccl", 1)], ids=["nccl", "cpu", "solo"]
)
@pytest.mark.parametrize("every", [(1, "epochs"), (4, "averages")], ids=str)
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
