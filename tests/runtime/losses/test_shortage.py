"""Too few descriptors, no memory, a folder that is full: one line that says what for, how much there is and what to set."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

from bench.results.runfolder import read_object
from ddp.core.errors import OutOfResources
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Finished, Lost
from ddp.engine.ranks import RankProcesses
from ddp.engine.spare_ranks import SpareProcesses
from ddp.process import memory, scratch
from ddp.replica.memory import final_state
from ddp.replica.task import Job
from ddp.trainer.state import read_state
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.threads import in_threads, sound
from tests.warm import PICTURES, Warm


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """This process may have no more than so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory with room for 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount, and no other file system is known to be full")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(("backend", "held"), [("nccl", "stage"), ("cpu", "parameters")])
def test_shared_memory_that_is_too_small_is_said_in_one_line(play: Play, small: Path, backend: str, held: str) -> None:
    """Of the run, not of one rank: with the path, the size, what is free and what to do, and without a traceback."""
    (small / "others").write_bytes(b"x" * 2_097_000)
    why = rf"rank \d failed: no room for [\d.]+ MB of shared memory in {small}/{held}\S+, 0\.0 MB are free there: .*shm-size"
    with pytest.raises(OutOfResources, match=why) as raised:
        play("cadence", backend, scratch=small, keep_state=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("most", [16, 40, 64])
def test_too_few_descriptors_are_said_in_one_line_and_leave_no_rank(play: Play, most: int) -> None:
    """And the fork server lives: the next run, with enough of them, needs no other."""
    play("sync", "nccl")
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(max(most - len(os.listdir("/proc/self/fd")) - 8, 0))]
    try:
        with (
            descriptors(most),
            pytest.raises(OutOfResources, match=rf"cannot be started: .*may open {most} at a time; ulimit -n \d+"),
        ):
            play("sync", "nccl", world_size=8)
    finally:
        for number in opened:
            os.close(number)
    assert play("sync", "nccl").digests


def test_a_fork_server_that_dies_is_no_defect(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: object) -> None:
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", gone)
    with pytest.raises(OutOfResources, match=r"rank 0 cannot be started: the fork server is gone; is there room"):
        play("sync", "nccl")


def gone(*_: object) -> None:
    raise EOFError("unexpected EOF")


def no_more(*_: object) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize(("start", "why"), [(gone, "the fork server is gone; "), (no_more, "no more processes, ")])
@pytest.mark.parametrize("of", ["multiprocessing.process.BaseProcess.start", "ddp.process.forkserver.warm"])
def test_a_rank_that_cannot_be_started_again_is_lost_and_no_defect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of: str, start: Callable[..., None], why: str
) -> None:
    monkeypatch.setattr(of, start)
    ranks = RankProcesses(job(tmp_path))
    ranks._channels, ranks._runners, ranks._own = {}, {}, job(tmp_path)
    try:
        ranks.restart(1, 1)
        lost = ranks.events(0.0)[0]
        ranks.drop(1)
    finally:
        ranks._end(0.0)
    assert isinstance(lost, Lost)
    assert lost.rank == 1
    assert lost.reason.startswith("it cannot be started again: no process for it: ")
    assert why in lost.reason


@pytest.mark.parametrize("start", [gone, no_more])
@pytest.mark.parametrize("of", ["multiprocessing.process.BaseProcess.start", "ddp.process.forkserver.warm"])
def test_a_spare_that_cannot_be_started_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of: str, start: Callable[..., None]
) -> None:
    monkeypatch.setattr(of, start)
    spares = SpareProcesses(replace(job(tmp_path), spares=2))
    spares.start()
    assert spares.take(1, 1) is None


def test_a_folder_for_private_files_that_cannot_be_made_names_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **where: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", f"{where['dir']}/ddp-run-1-x")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with (
        pytest.raises(
            OutOfResources, match=r"private files can be made in (\S+) \(TMPDIR .*No space left .* MB are free there"
        ),
        scratch.scratch(),
    ):
        pass


def test_memory_is_refused_for_another_reason_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(OutOfResources, match=r"can be had in .*nowhere/x: No such file or directory"):
        memory.shared(tmp_path / "nowhere" / "x", torch.float32, 10)


def test_a_rank_that_was_interrupted_in_its_start_leaves_no_open_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows the number of its process then: that its channel is closed ends it."""
    from multiprocessing.process import BaseProcess

    from ddp.engine.forked_rank import ForkedRank

    begun: list[BaseProcess] = []

    def interrupted(self: BaseProcess) -> None:
        begun.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(BaseProcess, "start", interrupted)
    rank = ForkedRank(job(Path()), 0)
    with pytest.raises(KeyboardInterrupt):
        rank.start()
    assert begun
    assert (rank._connection.closed, rank._far_end.closed) == (True, True)
    rank.kill()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("without", [("1", "2"), ("0", "1"), ("0", "1", "2")])
def test_a_final_state_for_which_there_is_no_room_is_one_of_several(
    play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: tuple[str, ...]
) -> None:
    """All ranks end with the same; the rank that could not write its own was lost, and with it the whole run."""
    records: list[Any] = []

    def save(state: Any, file: Any, save: Any = torch.save, **how: Any) -> None:
        path = Path(getattr(file, "name", file))
        if path.stem.removeprefix("state-") in without:
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file, **how)

    monkeypatch.setattr("ddp.engine.loop.torch.save", save)
    played = play("cadence", "nccl", world_size=3, scratch=tmp_path, records=records)
    assert sorted(event.rank for event in played.of(Finished)) == [0, 1, 2]
    assert played.of(Drop) == []
    assert len(list(tmp_path.glob("state-*"))) == 3 - len(without)
    if len(without) == 3:
        with pytest.raises(
            OutOfResources, match=r"no rank could write .*state-0.pt, [\d,.]+ MB are free there: make more"
        ):
            read_state(tmp_path, [0, 1, 2])
    else:
        assert read_state(tmp_path, [0, 1, 2]).params.keys() == dict(toy.task().model().named_parameters()).keys()


def test_final_states_written_at_once_leave_room_for_one_of_them(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took room from the others, so that none was whole."""
    model, together, met = nn.Linear(100, 3_000), Barrier(3, timeout=10.0), set[str]()  # 1.2 MB

    def save(state: Any, file: Any, save: Any = torch.save, **how: Any) -> None:
        if first := file.name not in met:
            met.add(file.name)
            file.write(b"x" * 600_000)
            file.flush()
            together.wait()
        try:
            save(state, file, **how)
        finally:
            if first:
                together.wait()

    monkeypatch.setattr(torch, "save", save)
    sound(in_threads(3, lambda rank: final_state.write(model, final_state.place(small, rank))))
    (left,) = small.iterdir()
    assert torch.equal(torch.load(left, weights_only=False)["weight"], model.weight)


def job(folder: Path) -> Job:
    """A run of two ranks."""
    from ddp.core.policies import POLICIES

    return Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "nccl", folder)


def test_an_interrupt_while_ranks_are_ended_ends_them_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second Ctrl-C."""
    killed: list[str] = []

    class Slow:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self, timeout_s: float) -> bool:
            raise KeyboardInterrupt

        def kill(self) -> None:
            killed.append(self.name)

    ranks = RankProcesses(job(tmp_path))
    ranks._channels, ranks._runners = {}, {0: Slow("0"), 1: Slow("1")}  # type: ignore[dict-item]  # all that it needs
    with pytest.raises(KeyboardInterrupt):
        ranks._end(1.0)
    assert killed == ["0", "1"]
    assert ranks._wake.closed


def test_a_timeline_that_cannot_be_written_costs_nobody_the_result(warm: Warm, tmp_path: Path) -> None:
    """The records are there, so it can be written later; the note says how."""
    (tmp_path / "full.py").write_text(
        "import errno, sys\nfrom bench.runner import launch\n"
        "def full(folder, *_, **__):\n"
        "    raise OSError(errno.ENOSPC, 'No space left on device', str(folder / 'timeline.html'))\n"
        "launch.write_timeline = full\nfrom bench.__main__ import main\nsys.exit(main())\n"
    )
    words = ("model=mlp", "mode=solo", "data.name=digits", "train.epochs=1", "report=false", "validate=false")
    code, out, err = warm.start(tmp_path, "full.py", *words, env={PICTURES: "none"}).result()
    assert (code, err) == (0, "")
    assert "the timeline is not written (No space left on device: " in out
    (folder,) = (path.parent for path in tmp_path.rglob("metrics.json"))
    note = next(note for note in read_object(folder / "metrics.json")["warnings"] if "timeline" in note)
    _, *words = shlex.split(note.partition("it is by: ")[2])
    code, out, err = warm.start(tmp_path, *words, env={PICTURES: "none"}).result()
    assert (code, err) == (0, "")
    assert (folder / "timeline.html").is_file()
