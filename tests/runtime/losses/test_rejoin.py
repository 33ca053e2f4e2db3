"""A rank that is killed comes back: started again, it takes another's state and trains on; every sample is trained once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import forkserver as server
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from ddp import WorkerHandle
from ddp.backends import paired_backends
from ddp.checkpoint.checkpoint import MODEL
from ddp.core.membership.joining import OFFERED
from ddp.core.messages.commands import Drop, Restart
from ddp.core.messages.events import Finished, Progress, Ready, Shared
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import parse
from ddp.engine import elche
from ddp.engine.loop import TrainingLoop
from ddp.engine.ranks import RankProcesses
from ddp.engine.spare_ranks import ForkedSpare, SpareProcesses
from ddp.replica.task import Job
from tests.runtime import toy
from tests.runtime.conftest import Play, Played
from tests.runtime.losses.test_mishap import trained_once
from tests.slow import few, slow

CELLS, MODES = (few(names, paired_backends()) for names in (POLICIES, ["sync", "cadence", "async"]))


def returns(play: Play, policy: str, backend: str, *faults: str, **fields: object) -> Played:
    """Play a run of three ranks in which whoever is lost is started again; all are there at its end."""
    script = tuple(parse(text) for text in faults)
    defaults = {"world_size": 3, "deadline_s": 5.0, "options": toy.short_windows(policy), "restarts": None}
    played = play(policy, backend, faults=script, **{**defaults, **fields})
    assert len(played.of(Drop)) == len(played.of(Restart)) == len(faults)
    back = {event.rank: event for event in played.of(Joined)}
    assert back.keys() == {fault.rank for fault in script}
    assert sorted(event.rank for event in played.of(Finished)) == [0, 1, 2]
    assert len(played.digests) == 1, "all end with the same bits"
    for rank, joined in back.items():
        later = [event for event in played.of(Progress) if event.rank == rank and event.at > joined.at]
        assert sum(event.samples for event in later) > 0, "it trains again"
    assert trained_once(played)
    return played


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_a_rank_that_raised_comes_back(play: Play, policy: str, backend: str) -> None:
    returns(play, policy, backend, "1@5:raise", epochs=12)


class Told(nn.Linear):
    """Keeps as extra state whether it was loaded."""

    def __init__(self) -> None:
        super().__init__(6, 2)
        self.extra = {"loaded": False}

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = {"loaded": True, "from": state}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_a_rank_that_comes_back_has_the_extra_state_of_another(play: Play, policy: str) -> None:
    """Its modules began anew."""
    played = returns(play, policy, "nccl", "1@5:raise", epochs=12, task=lambda: replace(toy.task(), model=Told))
    kept = [played.state(rank)["_extra_state"] for rank in range(3)]
    assert kept == [{"loaded": False}, {"loaded": True, "from": {"loaded": False}}, {"loaded": False}]


@pytest.mark.parametrize(("policy", "backend"), MODES)
def test_a_rank_that_was_killed_comes_back(play: Play, policy: str, backend: str) -> None:
    returns(play, policy, backend, "1@5:crash", epochs=15, speeds=(0.05,) * 3)


def test_a_fork_server_that_was_stopped_forks_all_the_same(play: Play) -> None:
    """The coordinator waited for it, for ever; Python's tracker of resources outlived its process."""
    tracker = resource_tracker._resource_tracker

    def run(job: Job, emit: Callable[[Any, float], None]) -> None:
        def watched(record: Any, at: float) -> None:
            emit(record, at)
            if isinstance(record, Ready):
                for number in (server._forkserver._forkserver_pid, tracker._pid):  # type: ignore[attr-defined]
                    os.kill(number, signal.SIGSTOP)

        elche.run(job, watched)

    cell = ("cadence", "cpu", "1@5:crash")
    returns(play, *cell, epochs=15, speeds=(0.05,) * 3, engine=SimpleNamespace(run=run))
    assert psutil.Process(tracker._pid).status() != psutil.STATUS_STOPPED  # type: ignore[attr-defined]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_a_rank_that_was_never_there_comes(play: Play, policy: str, backend: str) -> None:
    options, more = toy.short_windows(policy), {"absent": 1, "spares": 1, "deadline_s": 5.0, "epochs": 8}
    played = play(policy, backend, world_size=3, options=options, **more)
    assert sorted(event.rank for event in played.of(Ready)) == [0, 1]
    (joined,) = played.of(Joined)
    assert (joined.rank, played.of(Drop)) == (2, [])
    assert sorted(event.rank for event in played.of(Finished)) == [0, 1, 2]
    assert len(played.digests) == 1, "all end with the same bits"
    assert sum(event.samples for event in played.of(Progress) if event.rank == 2) > 0
    assert trained_once(played)


@pytest.mark.parametrize("backend", [name for name in paired_backends() if name != "cpu"])
@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_joins_the_only_one_has_its_state(play: Play, absent: int, backend: str) -> None:
    """It trained on from the initial parameters: nothing was sent before the first exchange."""
    crash = {"restarts": None, "faults": (parse("1@5:crash"),)}
    more = {"absent": 1, "spares": 1} if absent else crash
    played = play("sync", backend, epochs=15, speeds=(0.05, 0.05), deadline_s=10.0, **more)
    (shared,), (joined,) = played.of(Shared), played.of(Joined)
    assert shared.sketch == joined.sketch != ""
    before = [event for event in played.of(Progress) if event.at < shared.at]
    assert (sum(event.steps for event in before) > 0, trained_once(played)) == (True, True)
    assert (len(played.of(Finished)), len(played.digests)) == (2, 1)


@pytest.mark.parametrize("backend", ["nccl", *slow("cpu")])
def test_a_spare_takes_the_place_of_a_rank_that_was_killed(
    play: Play, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []

    def take(spares: SpareProcesses, rank: int, life: int, take: Any = SpareProcesses.take) -> Any:
        taken.append(spare := take(spares, rank, life))
        return spare

    monkeypatch.setattr(SpareProcesses, "take", take)
    crash = (parse("1@40:crash"),)
    options, more = toy.short_windows("cadence"), {"spares": 1, "deadline_s": 5.0, "speeds": (0.05,) * 3}
    played = play("cadence", backend, toy.drawn, world_size=3, epochs=15, options=options, faults=crash, **more)
    assert [(order.rank, order.reason) for order in played.of(Restart)] == [(1, OFFERED)]
    assert [event.rank for event in played.of(Joined)] == [1]
    assert [type(spare) for spare in taken] == [ForkedSpare], "it waited for that, its data read"
    assert played.of(Joining)[0].data == played.of(Ready)[0].data, "it had drawn other samples"
    assert trained_once(played)


def _halve(epoch: int, worker: WorkerHandle) -> None:
    worker.scale_lr(0.5)


def _follow(epoch: int, worker: WorkerHandle) -> None:
    if not epoch:
        worker.set_scheduler(lambda fraction: 0.5)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("callback", "power"), [(_halve, lambda epoch: epoch + 1), (_follow, lambda epoch: 1)])
def test_a_rank_that_comes_back_has_the_rates_of_the_others(play: Play, callback: Any, power: Any) -> None:
    """Callbacks scaled what it had taken over."""
    task = replace(toy.task(), epoch_callback=callback)
    played = returns(play, "sync", "nccl", "1@30:raise", epochs=8, task=lambda: task)
    wanted = {(epoch, 0.1 * 0.5 ** power(epoch)) for epoch in range(8)}
    assert {(event.epoch, event.lr) for event in played.of(Progress)} == wanted


@pytest.mark.usefixtures("in_process")
def test_a_rank_that_comes_back_in_a_resumed_run_leaves_the_outer_optimizer_as_it_is(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It put back the velocities of the checkpoint, which all ranks share."""
    fields = {"averaging": Averaging(outer="nesterov"), "epochs": 8, "checkpoint_folder": tmp_path}
    play("sync", "cpu", checkpoints=Checkpointing(1, "epochs", 0.0), world_size=3, **fields)
    source = sorted(tmp_path.glob("0*"))[0]
    held = torch.load(source / MODEL)["kept"]
    seen: list[bool] = []

    def restore(loop: TrainingLoop, kept: Any, recut: Any, restore: Any = TrainingLoop.restore) -> None:
        restore(loop, kept, recut)
        if loop.job.life:
            (live,) = (torch.from_file(str(path), size=len(held[0])) for path in loop.job.scratch.glob("velocity*"))
            seen.append(torch.equal(live, held[0]))

    monkeypatch.setattr(TrainingLoop, "restore", restore)
    more = {"world_size": 3, "restarts": None, "faults": (parse("1@60:raise"),)}
    assert len(play("sync", "cpu", resume=source, **fields, **more).of(Joined)) == 1
    assert seen == [False]


def test_an_offer_that_is_withdrawn_or_no_file_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name ended the run, and an offer that was withdrawn at the same time was taken."""
    (tmp_path / "offer-folder").mkdir()
    for name in ("offer-1", "offer-2"):
        (tmp_path / name).touch()
    ranks: Any = SimpleNamespace(_job=SimpleNamespace(offers=tmp_path))
    found = Path.glob

    def withdrawn(path: Path, pattern: str) -> list[Path]:
        every = list(found(path, pattern))
        (tmp_path / "offer-2").unlink(missing_ok=True)
        return every

    monkeypatch.setattr(Path, "glob", withdrawn)
    assert [event.name for event in RankProcesses._offered(ranks)] == ["offer-1"]
    assert RankProcesses._offered(ranks) == []
    assert [path.name for path in tmp_path.iterdir()] == ["offer-folder"]
