"""Checkpoints of ranks on other hosts: a full disk on the coordinator's, and strange files beside a checkpoint."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest

from ddp.checkpoint.checkpoint import publish, read
from ddp.core.messages.events import Saved
from ddp.process.codec import decode, encode
from ddp.remote.agent import RankAssignment, connect
from ddp.remote.file_mirror import FROM_COORDINATOR, PIECE, FileMirror
from ddp.remote.link import FrameKind, message
from ddp.remote.rendezvous import Company, RemoteRank, RendezvousServer
from tests.runtime.checkpoints.test_checkpoint_folder import laid_down
from tests.runtime.remote.loopback import KEY, RUN
from tests.runtime.remote.test_remote_file_mirror import CATALOGUE, _piece, holds, job


def test_a_full_disk_costs_a_checkpoint_or_a_saved_step_and_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was closed, to the ranks of all other hosts."""
    pwrite, room = os.pwrite, [2]

    def refuse(fd: int, data: bytes, offset: int) -> int:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, offset)

    there, here = holds(tmp_path)
    posted = RemoteRank(None, None, 1)  # type: ignore[arg-type]  # it has no connection here
    ours, posted._theirs = Pipe()
    posted._mirror = here
    assert there.checkpoints is not None
    monkeypatch.setattr(os, "pwrite", refuse)
    saved = Saved(1.0, 1, 3, (("rank-1.pt", 3 * PIECE, "sum"),), sketch="s")
    for event in (saved, replace(saved, index=4)):
        part = there.checkpoints / f".part-{event.index:06}" / "rank-1.pt"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"x" * 3 * PIECE)
        for kind, body in message(encode(event), there):
            posted.take(kind, body)
        told = decode(ours.recv_bytes())
        if event is saved:
            assert told.error.startswith("No space left on device: ")
            assert told == replace(saved, files=(), error=told.error)
            assert not list((tmp_path / "kept" / ".part-000003").iterdir())
        else:
            assert told == event
        room[0] = 9
    room[0] = 0
    for name in ("run/kept-1-7.state", "run/state-1.pt"):
        posted.take(FrameKind.FILE, _piece(name))
    assert list(here.scratch.iterdir()) == []
    with pytest.raises(OSError, match="No space left"):
        posted.take(FrameKind.FILE, _piece("run/parameters-1.float32"))


def test_only_the_files_of_a_checkpoint_are_sent(tmp_path: Path) -> None:
    """What else was in its folder, such as .DS_Store, was the end of the rank."""
    kept, order = laid_down(tmp_path / "kept", 3)
    place = publish(kept, order)
    for stray in (".DS_Store", "model.pt.bak", ".nfs000000000012a4"):
        (place / stray).touch()
    (place / "notes").mkdir()
    resumed = replace(job(tmp_path), resume=place, checkpoints=None)
    with closing(RendezvousServer(Company(RUN, KEY, 4, 2, 2, "127.0.0.1:1", CATALOGUE), "127.0.0.1")) as there:
        wire, _ = connect(RankAssignment(there.address, KEY, RUN, 1, 1, {}), 5.0)
        there.peer(1, 2.0)
        RemoteRank(there, resumed, 1).start().close()
        sent = FileMirror(tmp_path / "there", None, FROM_COORDINATOR)
        while (frame := wire.receive())[0] != FrameKind.START:
            if frame[0] == FrameKind.FILE:
                sent.write(frame[1])
        wire.close()
    assert read(place).manifest == read(sent.scratch / "resume").manifest
    assert {path.name for path in (sent.scratch / "resume").iterdir()} == {"books", "model.pt", "rank-0.pt"}
