"""Checkpoints under `Trainer`: the callback, and going on from one, also after the script itself was killed."""

from __future__ import annotations

import re
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp import RankLost, WorkerHandle
from ddp.checkpoint.checkpoint import find, read
from ddp.checkpoint.parts import LACKS
from ddp.trainer import CheckpointInfo
from tests.api.conftest import Make
from tests.runtime import toy
from tests.warm import Warm, wait_for

SCRIPT = """
import sys, time
import torch
from torch import nn
from ddp import Trainer
from tests.runtime import toy

def step(model, batch):
    time.sleep(0.002)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def told(info):
    print("checkpoint", info.epochs, flush=True)

go_on, folder = sys.argv[1:]
trainer = Trainer(
    lambda: toy.net(norm=True), lambda p: torch.optim.Adam(p, lr=0.01), step, toy.data(), batch_size=8, epochs=12,
    policy="sync", world_size=2, seed=3, checkpoint_folder=folder, checkpoint_callback=told,
    resume=folder if go_on == "resume" else None,
)
state = trainer.run().join()
torch.save(state.state_dict(), "state.pt")
"""


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_script_that_was_killed_goes_on_and_ends_bit_for_bit(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    process = warm.start(tmp_path, "script.py", "begin", "kept")
    try:
        assert wait_for(lambda: process.printed().count("checkpoint") >= 2, process)
    finally:
        process.kill_all()
    assert not (tmp_path / "state.pt").exists()
    found, _ = find(tmp_path / "kept")
    assert found is not None
    code, out, err = warm.start(tmp_path, "script.py", "resume", "kept").result()
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"checkpoint {epoch}" for epoch in range(found.books.epochs + 1, 12)]
    cut = torch.load(tmp_path / "state.pt", weights_only=True)
    code, _, _ = warm.start(tmp_path, "script.py", "begin", "whole").result()
    assert code == 0
    assert equal(cut, torch.load(tmp_path / "state.pt", weights_only=True))


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_callback_gets_the_folder_of_a_whole_checkpoint(make: Make, tmp_path: Path, world_size: int) -> None:
    told: list[tuple[CheckpointInfo, dict[str, Any]]] = []

    def callback(info: CheckpointInfo) -> None:
        told.append((info, torch.load(info.path / "model.pt", weights_only=True)["state_dict"]))

    make(
        world_size=world_size, epochs=4, policy="sync", checkpoint_folder=tmp_path / "kept", checkpoint_callback=callback
    ).run().join()  # fmt: skip
    assert [(info.epochs, info.samples) for info, _ in told] == [(n, n * toy.SAMPLES) for n in (1, 2, 3)]
    assert [info.path for info, _ in told] == [tmp_path / "kept" / f"{n:06}" for n in range(3)]
    assert [info.path.exists() for info, _ in told] == [False, True, True], "the last two are kept"
    models = [toy.net(norm=True) for _ in told]
    for model, (_, state) in zip(models, told, strict=True):
        model.load_state_dict(state)
    assert not equal(models[0].state_dict(), models[1].state_dict())


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_every_epoch_has_its_checkpoint_where_a_round_is_long_against_an_epoch(
    make: Make, tmp_path: Path, policy: str
) -> None:
    told: list[int] = []
    settings: dict[str, Any] = {"dataset": toy.data(480), "epochs": 8, "policy": policy, "backend": "nccl"}
    if policy != "sync":
        settings |= {"anchor": 100}  # a round for each epoch
    callback = partial(_note, told)
    make(**settings, checkpoint_folder=tmp_path, checkpoint_callback=callback).run().join()
    assert told == list(range(1, 8))


def _note(told: list[int], info: CheckpointInfo) -> None:
    told.append(info.epochs)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("which", ["folder", "checkpoint"])
def test_going_on_from_a_folder_or_one_of_its_checkpoints(
    make: Make, tmp_path: Path, world_size: int, which: str
) -> None:
    same: dict[str, Any] = {"world_size": world_size, "policy": "sync", "epochs": 3}
    whole = make(**same, checkpoint_folder=tmp_path / "kept").run().join()
    place = tmp_path / "kept" if which == "folder" else tmp_path / "kept" / "000000"
    handle = make(**same, resume=place).run()
    assert equal(handle.join().state_dict(), whole.state_dict())
    # Of the epochs before there is nothing to tell.
    assert [row.epoch for row in handle.poll_metrics()] == ([2] if which == "folder" else [1, 2])


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_a_callback_that_takes_longer_than_the_deadline_costs_no_rank(make: Make, tmp_path: Path, policy: str) -> None:
    """Nobody listens to the ranks meanwhile."""
    told: list[int] = []

    def callback(info: CheckpointInfo) -> None:
        told.append(info.epochs)
        time.sleep(3.5 if len(told) == 1 else 0.0)

    settings: dict[str, Any] = {"epochs": 4, "policy": policy, "deadline_s": 2.0, "tolerate_loss": False}
    make(**settings, checkpoint_folder=tmp_path / "kept", checkpoint_callback=callback).run().join()
    assert told[-1] == 3


def test_a_callback_that_raises_ends_the_run_and_its_checkpoint_stays(make: Make, tmp_path: Path) -> None:
    def callback(info: CheckpointInfo) -> None:
        raise LookupError("no room on the tape")

    settings: dict[str, Any] = {"epochs": 1000, "checkpoint_folder": tmp_path / "kept"}
    handle = make(**settings, checkpoint_callback=callback).run()
    for _ in range(2):
        with pytest.raises(LookupError, match="no room on the tape"):
            handle.join()
    found, problems = find(tmp_path / "kept")
    assert found is not None
    assert problems == []
    with make(**settings, resume=tmp_path / "kept").run() as again:
        first = again.next_metrics()
        assert first is not None
        assert first.epoch >= found.books.epochs


def test_a_run_that_lost_a_rank_goes_on_with_all(make: Make, tmp_path: Path) -> None:
    same: dict[str, Any] = {"world_size": 3, "epochs": 8, "anchor": 3, "max_anchor": 3, "backend": "cpu"}
    with pytest.warns(RuntimeWarning, match="rank 1 is lost"):
        make(**same, faults=["1@3:crash"], checkpoint_folder=tmp_path / "kept", checkpoint_every=3).run().join()
    place = tmp_path / "kept" / "000000"
    assert read(place).manifest.members == (0, 2)
    again = make(**same, resume=place).run()
    state = again.join()
    epochs = again.poll_metrics()
    assert (epochs[-1].epoch, epochs[-1].samples) == (7, toy.SAMPLES)
    # In some epoch: one whose steps a busy machine holds up may get none of another.
    shares = zip(*(epoch.per_rank_batch_share for epoch in epochs), strict=True)
    assert all(max(of_rank) > 0 for of_rank in shares), "the lost rank is back"
    assert all(bool(tensor.isfinite().all()) for tensor in state.params.values())


def test_a_run_that_ended_with_a_lost_rank_goes_on(make: Make, tmp_path: Path) -> None:
    same: dict[str, Any] = {"epochs": 4, "policy": "sync"}
    kept = {"checkpoint_folder": tmp_path / "kept", "checkpoint_every": 10, "checkpoint_unit": "averages"}
    whole = make(**same).run().join()
    with pytest.raises(RankLost, match="rank 1: its process is gone"):
        make(**same, **kept, faults=["1@30:crash"], tolerate_loss=False).run().join()
    assert equal(make(**same, resume=tmp_path / "kept").run().join().state_dict(), whole.state_dict())


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 2))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"model_factory": wide}, "not those of this model"),
        ({"dataset": toy.data(150)}, "of 203 training samples, there are 150 now"),
        (
            {"optimizer_factory": lambda parameters: torch.optim.SGD([{"params": [p]} for p in parameters], lr=0.1)},
            "not the state of this optimizer",
        ),
    ],
    ids=["model", "data", "optimizer"],
)
def test_what_ranks_cannot_go_on_with_is_one_line(
    make: Make, tmp_path: Path, world_size: int, change: dict[str, Any], remedy: str
) -> None:
    make(world_size=world_size, epochs=3, checkpoint_folder=tmp_path / "kept").run().join()
    with pytest.raises(ValueError, match=remedy) as caught:
        make(world_size=world_size, epochs=3, resume=tmp_path / "kept", **change).run().join()
    assert "\n" not in str(caught.value)
    assert not hasattr(caught.value, "__notes__"), "no traceback of a rank"
    assert find(tmp_path / "kept")[0] is not None


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"seed": 4}, "of a run with seed=3, this one has 4"),
        ({"epochs": 5}, "of a run with epochs=3, this one has 5"),
        ({"world_size": 1}, "of a run with world_size=2, this one has 1"),
        ({"policy": "async"}, "of a run with policy=Cadence, this one has Async"),
        ({"dispatch": "partition"}, "of a run with dispatch=progressive, this one has partition"),
    ],
    ids=str,
)
def test_another_run_is_refused_before_anything_starts(
    make: Make, tmp_path: Path, change: dict[str, Any], remedy: str
) -> None:
    make(epochs=3, checkpoint_folder=tmp_path / "kept").run().join()
    with pytest.raises(ValueError, match=remedy):
        make(**{"epochs": 3, "resume": tmp_path / "kept"} | change)


def test_an_empty_or_missing_folder_is_refused(make: Make, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="there is no checkpoint in it; begin anew"):
            make(resume=place)
    with pytest.raises(ValueError, match="say where checkpoints are to be laid down"):
        make(checkpoint_callback=print)


class Recalling(torch.optim.SGD):
    """One that keeps what no checkpoint can hold."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["past"] = deque([1.0])


def test_a_state_that_no_checkpoint_can_hold_is_told_of_and_the_run_goes_on(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.append(text))
    settings: dict[str, Any] = {"optimizer_factory": lambda parameters: Recalling(parameters, lr=0.1), "world_size": 1}
    make(**settings, epochs=2, checkpoint_folder=tmp_path).run().join()
    assert len(said) == 1
    assert said[0].startswith(
        "a checkpoint could not be made: the state of the optimizer holds a deque, and checkpoints"
    )
    assert find(tmp_path) == (None, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr_scale_ratio": 1.0}, "of a run with lr_scale=1.0, this one has 2.0"),
        ({"max_grad_norm": 1.0}, "of a run with max_grad_norm=None, this one has 1.0"),
        ({"optimizer_factory": torch.optim.Adam}, "not the state of this optimizer (it has no betas, eps)"),
        (
            {"optimizer_factory": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5)},
            "not the state of this optimizer (it was begun with weight_decay=0, this one has 0.5); go on with what it was",
        ),
    ],
)
def test_another_way_to_train_is_no_way_to_go_on(make: Make, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    make(checkpoint_folder=tmp_path, policy="sync").run().join()
    with pytest.raises(ValueError, match=re.escape(said)):
        make(**change, resume=tmp_path, policy="sync").run().join()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"anchor": 5}, "of a run with anchor=3, this one has 5"),
        ({"speed_hint": [1.0, 0.5]}, "of a run with speed_hint=None, this one has [1.0, 0.5]"),
    ],
    ids=str,
)
def test_another_controller_is_no_way_to_go_on(make: Make, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    same: dict[str, Any] = {"policy": "cadence", "anchor": 3, "partition_ratios": [0.75, 0.25]}
    make(**same, checkpoint_folder=tmp_path).run().join()
    make(**same, resume=tmp_path).run().join()
    with pytest.raises(ValueError, match=re.escape(said)):
        make(**same | change, resume=tmp_path).run().join()


class Counting(torch.optim.SGD):
    """One that works in its groups, in memory that is never the same twice."""

    def __init__(self, parameters: Any, lr: Any = 0.1, pair: Any = (0.9, 0.99)) -> None:
        super().__init__(parameters, lr=lr)
        own = {"pair": pair, "room": torch.rand(3), "views": [torch.rand(2)], "past": [], "sum": torch.zeros(())}
        self.param_groups[0].update(own)

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for name in ("room", "sum"):
            self.param_groups[0][name] += 1
        self.param_groups[0]["past"].append(1)


def test_what_an_optimizer_counts_in_its_groups_is_no_setting_of_it(make: Make, tmp_path: Path) -> None:
    same: dict[str, Any] = {"world_size": 1, "epochs": 2}
    make(**same, optimizer_factory=Counting, checkpoint_folder=tmp_path, checkpoint_every=1).run().join()
    first = find(tmp_path)[0]
    assert first is not None
    again = partial(Counting, pair=[torch.tensor(0.9, dtype=torch.float64), 0.99])
    make(**same, optimizer_factory=again, resume=first.path).run().join()
    with pytest.raises(ValueError, match=re.escape("begun with pair=(0.9, 0.99), this one has (0.9, 0.5)")):
        make(**same, optimizer_factory=partial(Counting, pair=(0.9, 0.5)), resume=first.path).run().join()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_schedule_that_a_callback_had_set_is_missed(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    said: set[str] = set()
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.add(text))

    def callback(epoch: int, worker: WorkerHandle) -> None:
        if epoch == 0:
            worker.set_scheduler(lambda seen: 0.5)

    settings: dict[str, Any] = {"world_size": world_size, "policy": "sync", "epoch_callback": callback}
    make(**settings, checkpoint_folder=tmp_path).run().join()
    assert not said
    handle = make(**settings, resume=tmp_path).run()
    handle.join()
    assert [row.lr for row in handle.poll_metrics()] == [0.1]
    assert said == {LACKS}
