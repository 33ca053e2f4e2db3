"""Checkpoints under `Trainer`: the callback, and going on from one, also after the script itself was killed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import RankLost, WorkerHandle
from ddp.checkpoint.checkpoint import MODEL, InvalidCheckpoint, find, read
from ddp.checkpoint.parts import LACKS
from ddp.trainer import CheckpointInfo
from tests.api.conftest import Make
from tests.runtime import toy
from tests.slow import slow
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


@pytest.mark.slow
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
    assert out.splitlines() == [f"checkpoint {epoch}" for epoch in range(found.coordinator.epochs + 1, 12)]
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


@pytest.mark.parametrize("policy", [*slow("sync"), "cadence", *slow("async")])
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
@pytest.mark.parametrize("which", ["folder", *slow("checkpoint")])
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


def test_a_damaged_checkpoint_is_skipped_with_a_warning(make: Make, tmp_path: Path) -> None:
    """There was none: the run silently went on from the one before."""
    same: dict[str, Any] = {"world_size": 1, "epochs": 3}
    whole = make(**same, checkpoint_folder=tmp_path).run().join()
    model = tmp_path / "000001" / "model.pt"
    content = model.read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    skipped = f"skipped: {model}: torn, its content is not what was written; going on from {tmp_path / '000000'}"
    with pytest.warns(RuntimeWarning, match=re.escape(skipped)):
        again = make(**same, resume=tmp_path)
    assert equal(again.run().join().state_dict(), whole.state_dict())


@pytest.mark.parametrize("policy", [*slow("sync"), "cadence"])
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
        assert first.epoch >= found.coordinator.epochs


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


@pytest.mark.slow
def test_a_run_that_ended_with_a_lost_rank_goes_on(make: Make, tmp_path: Path) -> None:
    same: dict[str, Any] = {"epochs": 4, "policy": "sync"}
    kept = {"checkpoint_folder": tmp_path / "kept", "checkpoint_every": 10, "checkpoint_unit": "averages"}
    whole = make(**same).run().join()
    with pytest.raises(RankLost, match="rank 1: its process is gone"):
        make(**same, **kept, faults=["1@30:crash"], tolerate_loss=False).run().join()
    assert equal(make(**same, resume=tmp_path / "kept").run().join().state_dict(), whole.state_dict())


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


class Warming(nn.Linear):
    """Warms its output up over its first passes, and saves their count as PyTorch's extra state."""

    def __init__(self, kind: Callable[[int], Any] = int) -> None:
        super().__init__(6, 2)
        self.passes, self._kind = 0, kind

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += self.training
        outputs: Tensor = super().forward(inputs) * min(self.passes / 50, 1.0)
        return outputs

    def get_extra_state(self) -> Any:
        return {"passes": self._kind(self.passes)}

    def set_extra_state(self, state: Any) -> None:
        self.passes = state["passes"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_extra_state_of_modules_goes_on(make: Make, tmp_path: Path, world_size: int) -> None:
    """It began anew, and the run ended with another model; the saved model could not be loaded."""
    same: dict[str, Any] = {"world_size": world_size, "policy": "sync", "epochs": 3, "model_factory": Warming}
    whole = make(**same, checkpoint_folder=tmp_path).run().join()
    resumed = make(**same, resume=tmp_path).run().join()
    assert equal(resumed.params, whole.params)
    assert resumed.extra == whole.extra
    saved, _ = find(tmp_path)
    assert saved is not None
    model = Warming()
    model.load_state_dict(torch.load(saved.path / MODEL, weights_only=True)["state_dict"])
    assert 0 < model.passes < whole.extra["_extra_state"]["passes"]


def test_extra_state_that_no_checkpoint_can_hold_is_told_of(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.append(text))
    make(world_size=1, model_factory=lambda: Warming(lambda n: deque([n])), checkpoint_folder=tmp_path).run().join()
    assert ["the modules' extra state _extra_state holds a deque, and" in text for text in said] == [True]
    assert find(tmp_path) == (None, [])


def test_a_module_that_refuses_its_extra_state_is_told_of(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer was blamed."""
    make(world_size=1, model_factory=Warming, checkpoint_folder=tmp_path).run().join()

    def refuse(self: Warming, state: Any) -> None:
        raise KeyError("of another version")

    monkeypatch.setattr(Warming, "set_extra_state", refuse)
    with pytest.raises(InvalidCheckpoint, match="a module refused its extra state"):
        make(world_size=1, model_factory=Warming, resume=tmp_path).run().join()
