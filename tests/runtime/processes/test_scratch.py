"""Folders for private files, and what others leave of them; limits of PyTorch's collectives."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ddp.comm.transports.gloo import limit_collectives
from ddp.process import scratch
from ddp.process.memory import shared
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


def test_room_is_measured_without_what_killed_runs_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed there for ever: it took the room, so later runs went to the disk, and tidied up there."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    left = memory / f"{scratch.PREFIX}left"
    for folder in (left, disk):
        folder.mkdir(parents=True)
    ProcessLock(left / scratch.OWNER).end()
    monkeypatch.setattr(scratch, "places", lambda: (memory, disk))
    usage = SimpleNamespace(disk_usage=lambda place: SimpleNamespace(free=0 if left.exists() else 1 << 40))
    monkeypatch.setattr(scratch, "shutil", SimpleNamespace(**{**vars(shutil), **vars(usage)}))
    with scratch.scratch() as folder:
        assert folder.parent == memory


def test_sockets_need_no_room_but_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has 64 MB of memory there, and a user's TMPDIR may be deep: the fork server did not start."""
    disk = tmp_path / "scratch-of-a-user-with-a-long-name" / "scratch-of-a-user-with-a-long-name"
    disk.mkdir(parents=True)
    monkeypatch.setattr(scratch, "ROOM", 1 << 60)
    monkeypatch.setattr(scratch, "places", lambda: (tmp_path, disk))
    assert scratch.lasting().parent == tmp_path
    monkeypatch.setattr(scratch, "places", lambda: (tmp_path / "none", disk))
    assert scratch.lasting().parent == Path("/tmp")
    monkeypatch.setattr(scratch, "places", lambda: (tmp_path / "none", Path("/var/tmp")))
    assert scratch.lasting().parent == Path("/var/tmp")


def test_shared_memory_can_be_had_where_the_file_system_cannot_allocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS before 4.2, say. The C library then reads and writes the file itself, where it may; others may not do so."""

    def emulated(descriptor: int, offset: int, size: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
            raise OSError(errno.EBADF, "Bad file descriptor")
        os.pread(descriptor, 1, 0)
        os.pwrite(descriptor, bytes(size), offset)

    def refused(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    for number, way in enumerate((emulated, refused)):
        monkeypatch.setattr(os, "posix_fallocate", way)
        one = shared(tmp_path / f"{number}", torch.float32, 1000)
        one += 1.0
        assert shared(tmp_path / f"{number}", torch.float32, 1000).sum() == 1000.0, "the second rank writes nothing"


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
