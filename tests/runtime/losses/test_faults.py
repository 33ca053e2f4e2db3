"""What happens when a rank does not do its duty: named, bounded in time, no process left (the fixture looks)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp.backends import paired_backends, snapshot
from ddp.core.errors import Diverged, OutOfResources, ProtocolError, RankFailed, RankLost, ReduceFailed
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Evaluated, Finished, Lost, Merged, Progress, Ready, Tick
from ddp.core.policies import POLICIES
from ddp.core.samples.spans import union
from ddp.core.settings.faults import Fault
from ddp.engine import elche
from ddp.engine.ranks import RankProcesses
from ddp.process.channel import Channel
from ddp.replica.task import Job
from tests.held_up import in_time
from tests.runtime import toy
from tests.runtime.conftest import Play, Played
from tests.slow import every, few, slow
from tests.spread import spread

CELLS = [(policy, backend) for policy in POLICIES for backend in paired_backends()]


@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_an_exception_is_raised_once_with_rank_and_traceback(
    play: Play, tmp_path: Path, policy: str, backend: str
) -> None:
    """Also one whose text is longer than a message may be, and holds what no text may."""
    with pytest.raises(RankFailed, match=r"rank [01] failed: .*!!!") as caught:
        play(policy, backend, partial(toy.troubled, "raise", tmp_path), tolerate_loss=False)
    assert len(caught.value.traceback) <= 200_000


def test_an_exception_that_looks_like_a_closed_channel_is_one_of_the_users(play: Play, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank [01] failed: EOFError: the file ends too early") as caught:
        play("cadence", "nccl", partial(toy.troubled, "eof", tmp_path), tolerate_loss=False)
    assert "toy.py" in caught.value.traceback


@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_a_killed_rank_is_named(play: Play, tmp_path: Path, policy: str, backend: str) -> None:
    with pytest.raises(RankLost, match=r"rank [01]: its process is gone \(killed by signal 9\)"):
        play(policy, backend, partial(toy.troubled, "kill", tmp_path), tolerate_loss=False)


@pytest.mark.parametrize("backend", paired_backends())
def test_a_stopped_rank_is_found_by_its_silence(play: Play, tmp_path: Path, backend: str) -> None:
    with pytest.raises(RankLost, match=r"rank [01]: silent for 2\.\d s"):
        play("cadence", backend, partial(toy.troubled, "stop", tmp_path), deadline_s=2.0, tolerate_loss=False)


@pytest.mark.parametrize(("cell", "kind"), every(2, spread(CELLS, ["kill", "stop", "raise"])))
def test_the_others_go_on_without_a_lost_rank(play: Play, tmp_path: Path, cell: tuple[str, str], kind: str) -> None:
    go_on_without_it(play, tmp_path, *cell, kind)


@pytest.mark.parametrize("kind", ["kill", "stop"])
@pytest.mark.parametrize("policy", ["sync", *slow("cadence")])
def test_they_do_so_through_gloo(play: Play, tmp_path: Path, policy: str, kind: str) -> None:
    """The transport of ranks that share no memory."""
    played = go_on_without_it(play, tmp_path, policy, "nccl", kind, transport="gloo")
    assert {event.transport for event in played.of(Ready)} == {"gloo"}


def go_on_without_it(play: Play, folder: Path, policy: str, backend: str, kind: str, **more: Any) -> Played:
    """Every sample is in the model once, by the record; all survivors end with the same bits; the lost rank is named."""
    task, options = partial(toy.troubled, kind, folder, at=7), toy.short_windows(policy)
    played = play(policy, backend, task, world_size=3, deadline_s=3.0, epochs=3, options=options, **more)
    (drop,) = played.of(Drop)
    cause = {"kill": "killed by signal 9", "stop": "silent for", "raise": "RuntimeError: the toy is broken"}[kind]
    assert cause in drop.reason
    assert sorted(event.rank for event in played.of(Finished)) == sorted({0, 1, 2} - {drop.rank})
    assert len(played.digests) == 1
    for epoch in range(3):
        spans = [span for line in played.of(Merged) if line.epoch == epoch for span in line.spans]
        assert union((), tuple(spans)) == ((0, toy.SAMPLES),)
    assert sum(event.samples for event in played.of(Evaluated) if event.epoch == 2) == 100
    assert played.accuracy() > 0.8
    return played


def test_survivors_of_a_synchronous_run_keep_one_rate_and_one_state(play: Play) -> None:
    """32 samples over three ranks are 11, 11 and 10: they went by their own slices, to rates of their own."""
    task = partial(toy.task, schedule=toy.rising_schedule)
    faults = (Fault(1, 4, "crash"),)
    played = play("sync", "nccl", task, world_size=4, deadline_s=3.0, tolerate_loss=True, faults=faults)
    assert [drop.rank for drop in played.of(Drop)] == [1]
    assert len(played.digests) == 1
    last = {event.rank: event.lr for event in played.of(Progress) if event.rank != 1}
    assert len(last) == 3
    assert len(set(last.values())) == 1


@pytest.mark.parametrize("world_size", [1, 2])
def test_divergence_is_not_a_crash(play: Play, tmp_path: Path, world_size: int) -> None:
    with pytest.raises(Diverged, match=r"not finite.*; lower the learning rate"):
        play("cadence", "nccl", partial(toy.troubled, "nan", tmp_path), world_size=world_size)


def test_a_failing_solo_run_names_rank_0(play: Play, tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="rank 0 failed: RuntimeError: the toy is broken"):
        play("sync", "nccl", partial(toy.troubled, "raise", tmp_path), world_size=1)


def test_memory_that_is_not_there_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Mapped without being reserved, it would kill the process at the first touch."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OutOfResources, match=r"no room for 4.0 MB of shared memory .*--shm-size"):
        snapshot._open(tmp_path, "snapshot-0", torch.float32, 1_000_000)


def test_an_error_of_the_reducer_is_an_error_of_the_run(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no average today")

    monkeypatch.setattr(snapshot, "average", broken)
    with pytest.raises(ReduceFailed, match="no average today"):
        play("cadence", "cpu")


def test_a_rank_speaks_for_itself_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours, theirs = Pipe()
    job = Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "nccl", tmp_path)
    ranks = RankProcesses(job)
    ranks._channels = {}
    ranks._connect(0, ours)
    for lie in (Lost(1.0, 1, "him, not me"), Tick(1.0), Progress(1.0, 1, 0, 1, 1, 0.1, 0.0, 0.1)):
        Channel(theirs).send(lie)
        with pytest.raises(ProtocolError, match="rank 0 sent what is not for it to say"):
            ranks.events(1.0)


def test_time_in_which_the_parent_stood_still_is_nobodys_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped in the middle of waiting, where it is most of the time, it took ranks for lost that had had no orders."""
    at, waits = 100.0, [0.5, 4.0, 0.1]

    class Poll:
        def register(self, *_: object) -> None: ...

        def poll(self, _: float) -> list[object]:
            nonlocal at
            at += waits.pop(0)
            return []

    monkeypatch.setattr("ddp.engine.ranks.now", lambda: at)
    monkeypatch.setattr("ddp.engine.ranks.select.poll", Poll)
    ranks = RankProcesses(Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "nccl", tmp_path))
    ranks._channels = {}
    assert [ranks.events(0.5) for _ in range(3)] == [[Tick(100.5)], [Tick(104.5, 3.5)], []]


@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_an_interrupt_stops_everything_within_three_seconds(
    play: Play, press: Callable[[], None], policy: str, backend: str
) -> None:
    pressed: list[float] = []
    training = threading.Event()

    def run(job: Job, emit: Callable[[Any, float], None]) -> None:
        def watched(record: Any, at: float) -> None:
            emit(record, at)
            if isinstance(record, Progress):
                training.set()

        elche.run(job, watched)

    def soon() -> None:
        assert training.wait(60.0)
        time.sleep(0.1)
        pressed.append(time.monotonic())
        press()

    threading.Thread(target=soon).start()
    with pytest.raises(KeyboardInterrupt):
        play(policy, backend, epochs=100_000, engine=SimpleNamespace(run=run))
    assert in_time(pressed[0], 3.0)
