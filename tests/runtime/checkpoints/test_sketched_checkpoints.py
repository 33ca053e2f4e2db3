"""What ranks sketch where they save and where they go on: the same, and what was not restored is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.validate.records.run_records import Records
from bench.validate.sketches.resumption import begun_otherwise
from ddp.checkpoint import parts
from ddp.core.messages.events import Ready, Resumed, Saved
from ddp.core.settings.checkpoints import Checkpointing
from ddp.data.seeded import seed_others
from tests.runtime import toy
from tests.runtime.checkpoints.test_checkpoints import ADAM, kept, play_on
from tests.runtime.conftest import Play, Played, spying
from tests.slow import every

load_optimizer = parts.load_optimizer
pytestmark = pytest.mark.usefixtures("in_process")
MODES = [("sync", "nccl", 1), ("cadence", "nccl", 3), ("async", "cpu", 2), ("sync", "zero1", 2), ("sync", "zero3", 2)]


def saving(play: Play, folder: Path, policy: str, backend: str, size: int) -> Played:
    checkpoints = {"checkpoints": Checkpointing(1, spacing_s=0.0), "checkpoint_folder": folder / "kept"}
    options = toy.short_windows(policy)
    return play(policy, backend, spying(folder, **ADAM), world_size=size, epochs=3, options=options, **checkpoints)


def gone_on(play: Play, whole: Played, folder: Path) -> str:
    """What is wrong with how a run goes on from its last checkpoint."""
    place = kept(folder / "kept")[-1]
    saved, ready = whole.of(Saved), play_on(play, whole, place).of(Ready)
    resumed = Resumed(max(event.at for event in saved), int(place.name), 2, 0, "there")
    return begun_otherwise(Records(ready=[*whole.of(Ready), *ready], saved=saved, resumed=[resumed]))


@pytest.mark.parametrize(("policy", "backend", "size"), every(2, MODES))
def test_a_run_goes_on_with_what_was_saved(play: Play, tmp_path: Path, policy: str, backend: str, size: int) -> None:
    whole = saving(play, tmp_path, policy, backend, size)
    assert all(event.sketch for event in whole.of(Saved))
    assert all(event.optimizer for event in whole.of(Saved))
    assert gone_on(play, whole, tmp_path) == ""


def lost(*about: Any) -> None:
    """Restores nothing."""


def begun_anew(states: Any) -> None:
    """Begins random numbers anew."""
    seed_others(1)


def scaled(name: str, into: Any, values: Any) -> None:
    """Restores other values."""
    for own, other in zip(into, values, strict=True):
        own.copy_(other * 1.001 if own.is_floating_point() else other)


@pytest.mark.parametrize(
    ("name", "broken", "sign"),
    [
        ("load_optimizer", lost, "with optimizer state nothing instead of exp_avg, exp_avg_sq, step"),
        ("copy_into", scaled, "with another model"),
        ("set_others", begun_anew, "with other random numbers than it had"),
    ],
)
@pytest.mark.parametrize(("policy", "backend", "size"), every(2, MODES[:3]))
def test_what_was_not_restored_is_named(
    play: Play,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    broken: Any,
    sign: str,
    policy: str,
    backend: str,
    size: int,
) -> None:
    whole = saving(play, tmp_path, policy, backend, size)
    monkeypatch.setattr(parts, name, broken)
    assert sign in gone_on(play, whole, tmp_path)


def one_otherwise(optimizer: Any, *about: Any) -> None:
    """Restores one moment otherwise."""
    load_optimizer(optimizer, *about)
    next(iter(optimizer.state.values()))["exp_avg"].mul_(1.001)


@pytest.mark.parametrize("backend", ["zero1", "zero3"])
def test_shards_that_were_not_restored_are_named(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    whole = saving(play, tmp_path, "sync", backend, 2)
    monkeypatch.setattr(parts, "load_optimizer", one_otherwise)
    assert "with other shards exp_avg" in gone_on(play, whole, tmp_path)
