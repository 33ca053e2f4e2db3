"""The folder of checkpoints: what is not ours stays, and the latest has the highest number."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp.checkpoint import checkpoint
from ddp.checkpoint.checkpoint import MANIFEST, MODEL, find, place, publish, rank_file, resume
from ddp.core.guard import GUARDS
from ddp.core.messages.commands import CoordinatorCheckpoint, Publish
from ddp.core.messages.events import Saved
from ddp.core.samples.ledger import Ledger
from ddp.engine import elche
from ddp.graph import engine as graph_engine
from ddp.replica.task import Job
from tests.runtime import toy
from tests.runtime.checkpoints.kept_job import EVERY

pytestmark = pytest.mark.usefixtures("in_process")


def laid_down(folder: Path, index: int, samples: int = 10) -> tuple[Job, Publish]:
    job = Job(toy.task, 9, 8, 0, 1, None, "nccl", folder, checkpoint_folder=folder)  # type: ignore[arg-type]
    files = tuple(checkpoint.save(folder, index, name, {}) for name in ("rank-0.pt", MODEL))
    ledgers = (Ledger(0, samples).merge(((0, 5),)).reopen(),)
    return job, Publish(
        index, (0,), files, CoordinatorCheckpoint(samples, 1, ledgers, 0, index + 1, None, None), "test"
    )


def test_what_is_not_ours_in_the_folder_stays(tmp_path: Path) -> None:
    """A folder of the user's whose name began with a digit was removed as an old checkpoint."""
    others = [tmp_path / name for name in ("2024-data", "000001-notes", "000007", ".part-mine", "12")]
    for path in others:
        path.mkdir()
        (path / "kept.txt").write_text("mine")
    for index in range(4):
        publish(*laid_down(tmp_path, index))
    assert all((path / "kept.txt").exists() for path in others)
    assert sorted(path.parent.name for path in tmp_path.glob(f"*/{MANIFEST}")) == ["000002", "000003"]


def test_a_run_that_begins_anew_in_the_folder_of_another_keeps_its_own(tmp_path: Path) -> None:
    """Its first checkpoints were taken for too old, and what was found was the other run's."""
    for index in (7, 8):
        publish(*laid_down(tmp_path, index))
    publish(*laid_down(tmp_path, 0))
    found, problems = find(tmp_path)
    assert found is not None
    assert (found.path, problems) == (place(tmp_path, 0), [])
    assert [path.parent.name for path in tmp_path.glob(f"*/{MANIFEST}")] == ["000000"]


def test_the_latest_is_that_of_the_highest_number(tmp_path: Path) -> None:
    for index in (999_999, 1_000_000):
        publish(*laid_down(tmp_path, index))
    found, _ = find(tmp_path)
    assert found is not None
    assert found.manifest.index == 1_000_000


def refused(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "a part")


@pytest.mark.parametrize("failing", ["a part", "the whole"])
@pytest.mark.parametrize(("engine", "world_size"), [(elche, 1), (elche, 2), (graph_engine, 2)])
def test_what_cannot_be_made_takes_no_room(
    play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, engine: Any, world_size: int
) -> None:
    """Parts stayed until the next checkpoint, and kept the full disk full."""
    if failing == "the whole":
        monkeypatch.setattr(checkpoint, "publish", refused)
    else:
        save, last = checkpoint.save, MODEL if world_size == 1 else rank_file(1)
        monkeypatch.setattr(checkpoint, "save", lambda *part: refused() if part[2] == last else save(*part))
    played = play("sync", "nccl", world_size=world_size, engine=engine, checkpoint_folder=tmp_path / "kept", **EVERY)
    assert any(event.error for event in played.of(Saved))
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize("guard", ["level", "growth", "none"])
def test_the_guards_state_is_its_own_again(play: Any, tmp_path: Path, guard: str) -> None:
    """Of `growth` it was a dictionary, at which the resumed run came to grief."""
    options = {"anchor": 3, "max_anchor": 3, "guard": guard}
    play("cadence", "cpu", options=options, epochs=3, checkpoint_folder=tmp_path / "kept", **EVERY)
    found, _ = find(tmp_path / "kept")
    assert found is not None
    rest = play("cadence", "cpu", options=options, epochs=3, resume=found.path)
    held = resume(rest.job)
    assert held is not None
    begun = GUARDS[guard](0.05).start()
    assert type(held.coordinator.policy_state.guard) is type(begun)
    assert rest.digests


def test_what_a_run_resumes_from_stays_for_ranks_that_are_started_again(tmp_path: Path) -> None:
    publish(*laid_down(tmp_path, 0))
    for index in range(1, 5):
        job, order = laid_down(tmp_path, index)
        publish(replace(job, resume=place(tmp_path, 0)), order)
    assert sorted(path.parent.name for path in tmp_path.glob(f"*/{MANIFEST}")) == ["000000", "000003", "000004"]
