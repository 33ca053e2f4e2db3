"""Folders for private files, and what others leave of them; limits of PyTorch's collectives."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from ddp.comm.transports.gloo import limit_collectives
from ddp.process import scratch
from ddp.process.process_lock import ProcessLock


def test_folders_of_ended_runs_are_removed_and_no_others(tmp_path: Path) -> None:
    """Process numbers say nothing: 4194304 is that of no process here, but may be one of a neighbouring container's."""
    lives, ended, beginning = (tmp_path / f"{scratch.PREFIX}4194304-{name}" for name in ("lives", "ended", "beginning"))
    for folder in (lives, ended, beginning):
        folder.mkdir()
        (folder / "state-0.pt").touch()
    life = ProcessLock(lives / scratch.OWNER)
    ProcessLock(ended / scratch.OWNER).end()
    (tmp_path / f"{scratch.PREFIX}file").touch()
    scratch.tidy(tmp_path)
    assert (lives / "state-0.pt").exists()
    assert not ended.exists()
    assert beginning.exists(), "it is not locked yet"
    life.end()
    scratch.tidy(tmp_path)
    assert not lives.exists()


def test_a_folder_is_locked_while_it_is_used() -> None:
    with scratch.scratch() as folder:
        scratch.tidy(folder.parent)
        assert folder.exists()
    assert not folder.exists()


def test_the_older_name_of_a_setting_is_left_alone_where_there_is_a_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(dist, "set_timeout", lambda *given: said.extend(given), raising=False)
    monkeypatch.delattr(dist.distributed_c10d, "_set_pg_timeout", raising=False)
    limit_collectives(timedelta(days=1))
    assert said == [timedelta(days=1), None]  # there is no group here
