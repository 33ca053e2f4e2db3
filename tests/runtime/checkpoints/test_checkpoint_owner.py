"""A folder of checkpoints is one run's until that run ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddp.checkpoint.begin import begun
from ddp.checkpoint.checkpoint import part_folder
from ddp.core.settings.checkpoints import Checkpointing
from ddp.engine import solo
from ddp.replica.task import Job
from tests.runtime.checkpoints.test_checkpoint_folder import laid_down


def writing(folder: Path) -> Job:
    return replace(laid_down(folder, 3)[0], checkpoints=Checkpointing())


def test_a_second_run_leaves_the_first_ones_parts_alone(tmp_path: Path) -> None:
    """It removed them, and its checkpoints took the place of the other's."""
    job = writing(tmp_path)
    with begun(job) as first:
        assert first.run
        part_folder(tmp_path, 4).mkdir()
        with pytest.raises(ValueError, match="another run writes checkpoints there"):
            solo.run(job, lambda record, at: None)
        with begun(replace(job, checkpoints=Checkpointing(every=0))):
            pass
        assert part_folder(tmp_path, 4).is_dir()
    assert list(tmp_path.iterdir()) == [], "an interrupt left what it had begun to write in the run's folder"
    part_folder(tmp_path, 4).mkdir()
    with begun(job):
        assert list(tmp_path.iterdir()) == [tmp_path / ".owner"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_removed_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(path)

    with begun(writing(tmp_path)):
        monkeypatch.setattr(Path, "unlink", refused)
    monkeypatch.undo()
    with begun(writing(tmp_path)) as again:  # it is not held any longer
        assert again.run


def test_a_run_without_checkpoints_makes_no_folder_for_them(tmp_path: Path) -> None:
    job = replace(writing(tmp_path), checkpoints=Checkpointing(every=0), checkpoint_folder=tmp_path / "none")
    with begun(job):
        assert not (tmp_path / "none").exists()
