"""What goes along with messages, what may be written where, and jobs as data. No processes."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Apply, Average, LoadState
from ddp.core.messages.events import Alive, Finished, Saved, Shared, Snapshot
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.faults import Fault
from ddp.core.settings.loader import Loading
from ddp.process.codec import encode
from ddp.remote import job_message
from ddp.remote.file_mirror import FROM_COORDINATOR, PIECE, FileMirror, from_rank, read
from ddp.remote.link import FrameKind, message
from ddp.replica.task import Job
from tests.runtime import toy

CATALOGUE = {"toy.task": (toy.task, (float, bool))}


def holds(folder: Path, rank: int = 1) -> tuple[FileMirror, FileMirror]:
    """A rank's host and the coordinator's."""
    for name in ("there", "here", "kept"):
        (folder / name).mkdir()
    there = FileMirror(folder / "there", folder / "there" / "checkpoints", FROM_COORDINATOR)
    return there, FileMirror(folder / "here", folder / "kept", from_rank(rank))


def delivered(sender: FileMirror, receiver: FileMirror, record: object) -> bytes:
    """Send a message with what goes along; what arrives last."""
    frames = list(message(encode(record), sender))  # type: ignore[arg-type]
    for kind, body in frames[:-1]:
        assert kind == FrameKind.FILE
        receiver.write(body)
    assert frames[-1][0] == FrameKind.MESSAGE
    return frames[-1][1]


def test_a_snapshot_goes_up_and_its_average_comes_down(tmp_path: Path) -> None:
    """Into files that both ends have mapped already: the same files, other content."""
    there, here = holds(tmp_path)
    large = bytes(range(256)) * (PIECE // 100)
    (there.scratch / "parameters-1.float32").write_bytes(large)
    (there.scratch / "buffers-1.int64").write_bytes(b"")
    (there.scratch / "parameters-11.float32").write_bytes(b"of another rank")
    (there.scratch / "divergence-1.float64").write_bytes(b"8 bytes.")
    (here.scratch / "parameters-1.float32").write_bytes(b"\0" * len(large))
    inode = (here.scratch / "parameters-1.float32").stat().st_ino
    event = Snapshot(1.0, 1, 4, 2, 16)
    assert delivered(there, here, event) == encode(event)
    assert {path.name for path in here.scratch.iterdir()} == {
        "parameters-1.float32",
        "buffers-1.int64",
        "divergence-1.float64",
    }
    assert (here.scratch / "parameters-1.float32").read_bytes() == large
    assert (here.scratch / "parameters-1.float32").stat().st_ino == inode
    for name in ("parameters-average.float32", "velocity-float32.float32", "parameters-2.float32"):
        (here.scratch / name).write_bytes(name.encode())
    delivered(here, there, Apply(1, 4, "the average is there"))
    assert (there.scratch / "parameters-average.float32").read_bytes() == b"parameters-average.float32"
    assert (there.scratch / "velocity-float32.float32").is_file()
    assert not (there.scratch / "parameters-2.float32").exists()


def test_what_is_shared_finds_those_who_missed_it(tmp_path: Path) -> None:
    there, here = holds(tmp_path)
    (there.scratch / "shared-7.pt").write_bytes(b"long " * 9)
    (here.scratch / "shared-7.pt").write_bytes(b"longer, of a round before " * 9)
    delivered(there, here, Shared(1.0, 1, 7))
    assert (here.scratch / "shared-7.pt").read_bytes() == b"long " * 9
    (there.scratch / "shared-7.pt").unlink()
    delivered(here, there, LoadState(1, 7, "the others have it"))
    assert (there.scratch / "shared-7.pt").read_bytes() == b"long " * 9


def test_a_part_of_a_checkpoint_moves(tmp_path: Path) -> None:
    there, here = holds(tmp_path)
    part = tmp_path / "there" / "checkpoints" / ".part-000003" / "rank-1.pt"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"state")
    delivered(there, here, Saved(1.0, 1, 3, (("rank-1.pt", 5, "sum"),)))
    assert (tmp_path / "kept" / ".part-000003" / "rank-1.pt").read_bytes() == b"state"
    assert not part.exists()


def test_other_messages_go_alone(tmp_path: Path) -> None:
    there, here = holds(tmp_path)
    (there.scratch / "parameters-1.float32").write_bytes(b"x")
    (there.scratch / "state-1.pt").write_bytes(b"x")
    for record in (Alive(1.0, 1), Average(1, 2, (0, 1), True, "due")):
        assert len(list(message(encode(record), there))) == 1
    assert len(list(message(encode(Finished(1.0, 1, "digest", 1, 0)), there))) == 2
    assert [*message(b"anything", None)] == [(FrameKind.MESSAGE, b"anything")]
    assert list(here.scratch.iterdir()) == []


def test_files_of_a_run_that_is_over_are_missed_by_nobody(tmp_path: Path) -> None:
    """On a slow link they are gone before their turn comes; the link broke, and with it all runs to come."""
    _, here = holds(tmp_path)
    for kind in ("float32", "float64"):
        (here.scratch / f"parameters-1.{kind}").write_bytes(b"x")
    missed, over = (message(encode(Apply(1, 4, "the average is there")), here) for _ in range(2))
    assert next(missed)[0] == next(over)[0] == FrameKind.FILE
    (here.scratch / "parameters-1.float64").unlink()
    with pytest.raises(FileNotFoundError):
        next(missed)
    shutil.rmtree(here.scratch)
    assert [kind for kind, _ in over] == [FrameKind.MESSAGE]


def test_a_disk_that_is_full_is_named_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    _, here = holds(tmp_path)
    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match=r"No space left on device: .*/here/parameters-1\.float32"):
        here.write(_piece("run/parameters-1.float32"))


def test_slices_grow_on_both_sides(tmp_path: Path) -> None:
    there, here = holds(tmp_path)
    path = there.scratch / "slices-1.jsonl"
    path.write_text("one\ntwo\n")
    for piece in read(path, "run/slices-1.jsonl", 0, 8):
        here.write(piece)
    path.write_text("one\ntwo\nthree\n")
    for piece in read(path, "run/slices-1.jsonl", 8, 14):
        here.write(piece)
    assert (here.scratch / "slices-1.jsonl").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    "name",
    [
        "run/parameters-0.float32",
        "run/parameters-average.float32",
        "run/parameters-11.float32",
        "run/slices-0.jsonl",
        "run/../slices-1.jsonl",
        "run/parameters-1.float32/../../x",
        "run/parameters-1.float32\n",
        "/etc/passwd",
        "../x",
        "run/",
        "",
        "checkpoint/000001/rank-0.pt",
        "checkpoint/000001/../rank-1.pt",
        "checkpoint/..000/rank-1.pt",
        "checkpoint/000001/books",
        "resume/books",
        "run/état-1.pt",
    ],
)
def test_a_rank_writes_what_is_its_own_and_nothing_else(tmp_path: Path, name: str) -> None:
    _, here = holds(tmp_path)
    (tmp_path / "file").write_bytes(b"evil")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProtocolError, match="not for the other side to write"):
        here.write(_piece(name))
    assert sorted(tmp_path.rglob("*")) == before


def _piece(name: str) -> bytes:
    raw = name.encode()
    return len(raw).to_bytes(2, "big") + (0).to_bytes(8, "big") + (4).to_bytes(8, "big") + raw + b"evil"


@pytest.mark.parametrize("name", ["run/../x", "run/.hidden", "checkpoint/000001/rank-1.pt", "run/a/b", "x"])
def test_nor_does_the_coordinator_write_beyond_the_run(tmp_path: Path, name: str) -> None:
    there, _ = holds(tmp_path)
    with pytest.raises(ProtocolError):
        there.write(_piece(name))


@pytest.mark.parametrize("body", [b"", b"short", b"\xff" * 18, (b"\0" * 2 + b"\xff" * 16)])
def test_a_broken_piece_is_refused(tmp_path: Path, body: bytes) -> None:
    _, here = holds(tmp_path)
    with pytest.raises(ProtocolError):
        here.write(body)


def test_a_piece_beyond_its_file_is_refused(tmp_path: Path) -> None:
    _, here = holds(tmp_path)
    piece = bytearray(_piece("run/parameters-1.float32"))
    piece[17] = 3
    with pytest.raises(ProtocolError):
        here.write(bytes(piece))


# Jobs


def job(folder: Path) -> Job:
    return Job(
        task=partial(toy.task, 0.2, True),
        epochs=3,
        batch_size=8,
        seed=5,
        world_size=4,
        policy=POLICIES["cadence"](),
        backend="cpu",
        scratch=folder,
        averaging=Averaging(outer="nesterov", gamma=0.5),
        loading=Loading("streaming", prefetch=3),
        speeds=(1.0, 0.5, 1.0, 1.0),
        faults=(Fault(1, 40, "slow", 3.0),),
        checkpoint_folder=folder / "checkpoints",
        resume=folder / "000007",
        meet="host:1/x",
        host_ranks=2,
    )


CLOCK = ("host", "local_rank", "clock_shift", "clock_error_s", "hostname")
LOCAL = {"task", "policy", "scratch", "checkpoint_folder", "resume", "offers", "preload"}
LOCAL |= {"elsewhere", "threads", *CLOCK}
"""What of a job is made anew where it arrives."""


def test_a_job_arrives_as_it_was_sent(tmp_path: Path) -> None:
    sent = replace(job(tmp_path), checkpoints=None)
    arrived = job_message.job_of(
        job_message.read(job_message.encode(sent, CATALOGUE, here=False)), CATALOGUE, Path("/private")
    )
    for field in fields(Job):
        if field.name not in LOCAL:
            assert getattr(arrived, field.name) == getattr(sent, field.name), field.name
    assert arrived.policy == sent.policy
    assert isinstance(arrived.task, partial)
    assert (arrived.task.func, arrived.task.args) == (toy.task, (0.2, True))
    assert (arrived.scratch, arrived.resume) == (Path("/private"), Path("/private/resume"))


def test_on_the_same_host_it_uses_the_same_files(tmp_path: Path) -> None:
    ordered = job_message.read(job_message.encode(job(tmp_path), CATALOGUE, here=True))
    arrived = job_message.job_of(ordered, CATALOGUE, Path(ordered.scratch))
    assert (arrived.scratch, arrived.resume) == (tmp_path, tmp_path / "000007")


def test_every_field_of_a_job_travels_or_is_made_anew() -> None:
    assert job_message.LOCAL == LOCAL
    sent = msgspec.json.decode(job_message.read(job_message.encode(job(Path("/own")), CATALOGUE, here=False)).job)
    assert set(sent) | LOCAL == {field.name for field in fields(Job)}


@pytest.mark.parametrize("task", [toy.odd_task, partial(toy.task, lr=0.1), lambda: toy.task()])
def test_a_function_of_ones_own_does_not_travel(tmp_path: Path, task: object) -> None:
    with pytest.raises(ValueError, match="a task of your own cannot be sent"):
        job_message.encode(replace(job(tmp_path), task=task), CATALOGUE, here=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"task": "os.system"},
        {"arguments": ["fast", True]},
        {"arguments": [0.1]},
        {"policy": "none"},
        {"settings": {"anchor": "many"}},
        {"job": {}},
        {"scratch": 7},
    ],
)
def test_a_malformed_order_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    body = msgspec.json.decode(job_message.encode(job(tmp_path), CATALOGUE, here=False)) | change
    with pytest.raises(ProtocolError, match="malformed order"):
        job_message.job_of(job_message.read(msgspec.json.encode(body)), CATALOGUE, tmp_path)
