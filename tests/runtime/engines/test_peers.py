"""PyTorch's own engines as peers: what happens when a rank does not do its duty, odd batches, and what they refuse."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.config.config import Choice, ClusterConfig
from ddp.backends import BACKENDS
from ddp.backends.torch_fsdp import own_methods
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import ExchangeBroken, broken
from ddp.core.errors import RankFailed, RankLost
from ddp.core.messages.events import Evaluated, Ready
from ddp.core.settings.checkpoints import Checkpointing
from ddp.replica.task import Task, Tensors
from tests.bench.planned import planned
from tests.held_up import in_time
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import every, slow

PEERS = [name for name, spec in BACKENDS.items() if spec.torch_native]


def _hang(folder: Path, model: nn.Module, batch: Tensors) -> torch.Tensor:
    with suppress(FileExistsError):
        (folder / f"hangs-{os.getpid()}").touch(exist_ok=False)
        if len(list(folder.glob("hangs-*"))) == 2:
            time.sleep(60)
    return toy.loss(model, batch)


def hanging(folder: Path) -> Task:
    """The second rank to begin never comes to an end; it is not stopped, though."""
    return replace(toy.task(), loss=partial(_hang, folder))


@pytest.mark.parametrize("engine", every(2, PEERS))
def test_a_killed_rank_is_named(play: Play, tmp_path: Path, engine: str) -> None:
    """Not one of those who stood in a collective with it, and fail for that."""
    with pytest.raises(RankLost, match=r"rank [012]: its process is gone \(killed by signal 9\)"):
        play("sync", engine, partial(toy.troubled, "kill", tmp_path), world_size=3)


@pytest.mark.parametrize("engine", every(2, PEERS))
def test_an_exception_is_raised_with_rank_and_traceback(play: Play, tmp_path: Path, engine: str) -> None:
    with pytest.raises(RankFailed, match=r"rank [01] failed: RuntimeError: the toy is broken") as caught:
        play("sync", engine, partial(toy.troubled, "raise", tmp_path))
    assert "toy.py" in caught.value.traceback


@pytest.mark.parametrize("engine", ["torch_ddp", *slow("torch_fsdp")])
def test_a_stopped_rank_is_found_by_its_silence(play: Play, tmp_path: Path, engine: str) -> None:
    with pytest.raises(RankLost, match=r"rank [01]: silent for 2\.\d s"):
        play("sync", engine, partial(toy.troubled, "stop", tmp_path), deadline_s=2.0)


def test_a_rank_that_hangs_in_its_own_code_is_found(play: Play, tmp_path: Path) -> None:
    """Signs of life end with the deadline, since nobody knows what happens inside a step."""
    began = time.monotonic()
    with pytest.raises(RankLost, match=r"rank [01]: silent for"):
        play("sync", "torch_ddp", partial(hanging, tmp_path), deadline_s=1.5)
    assert in_time(began, 30.0)


def _with_a_part_beside() -> nn.Module:
    net = toy.net(norm=True)
    net.get_submodule("0").register_module("beside", nn.Linear(3, 3))  # which the layer that holds it does not use
    return net


def beside(static_graph: bool) -> Task:
    return replace(toy.task(), model=_with_a_part_beside, static_graph=static_graph)


@pytest.mark.parametrize("engine", ["torch_ddp", *slow("torch_zero1", "torch_local_sgd")])
def test_a_loss_that_does_not_depend_on_all_is_refused_in_words(play: Play, engine: str) -> None:
    """Its own words came a step later, and named settings that no user has."""
    with pytest.raises(
        RankFailed, match=rf"depend on 0.beside.weight, 0.beside.bias .* {engine} does not take .*nccl_sync"
    ):
        play("sync", engine, partial(beside, False), epochs=1)
    assert "0.beside.weight" in play("sync", engine, partial(beside, True), epochs=1).state()


@pytest.mark.parametrize("engine", every(2, PEERS))
def test_a_batch_with_fewer_samples_than_ranks(play: Play, engine: str) -> None:
    """One sample is left for the last step: two ranks have none, and nothing of theirs reaches the model. Every epoch is
    evaluated with one model on all ranks, and all end with its bits."""
    task = partial(toy.task, norm=False, samples=25)
    played = play("sync", engine, task, world_size=3, epochs=3)
    assert len(played.digests) == 1
    assert [event.transport for event in played.of(Ready)] == ["gloo"] * 3
    ours = play("sync", "nccl", task, world_size=3, epochs=3)
    for name, value in ours.state().items():
        torch.testing.assert_close(played.state()[name], value, rtol=0, atol=1e-5)
    for epoch in range(3):
        losses = [sum(e.loss_sum for e in run.of(Evaluated) if e.epoch == epoch) for run in (played, ours)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("engine", every(2, PEERS))
def test_gradients_are_clipped_after_their_average(play: Play, engine: str) -> None:
    fields = {"max_grad_norm": 0.1, "epochs": 1}
    played, ours, free = (
        play("sync", backend, **given)
        for backend, given in ((engine, fields), ("nccl", fields), (engine, {"epochs": 1}))
    )
    for name, value in ours.state().items():
        torch.testing.assert_close(played.state()[name], value, rtol=0, atol=1e-5)
    assert any(not torch.allclose(free.state()[name], value, atol=1e-3) for name, value in ours.state().items())


def test_one_rank_is_solo(play: Play) -> None:
    alone = play("sync", "nccl", world_size=1)
    assert all(play("sync", name, world_size=1).digests == alone.digests for name in PEERS)


def test_ddp_goes_on_from_a_checkpoint_bit_for_bit(play: Play, tmp_path: Path) -> None:
    task = partial(toy.task, optimizer="Adam", lr=0.01, norm=True, schedule=toy.rising_schedule)
    fields = {"task": task, "epochs": 3}
    fields |= {"checkpoints": Checkpointing(4, "averages", spacing_s=0.0), "checkpoint_folder": tmp_path / "kept"}
    whole = play("sync", "torch_ddp", **fields)
    places = sorted((tmp_path / "kept").glob("[0-9]*"))
    assert len(places) == 2
    for place in places:
        rest = play("sync", "torch_ddp", resume=place, **fields | {"checkpoint_folder": tmp_path / "again"})
        assert rest.digests == whole.digests


@pytest.mark.parametrize("engine", [name for name, spec in BACKENDS.items() if not spec.checkpoints])
def test_checkpoints_that_cannot_be_made_are_refused_before_anything_starts(play: Play, engine: str) -> None:
    with pytest.raises(ValueError, match=f"{engine} makes no checkpoints"):
        play("sync", engine, checkpoints=Checkpointing())
    with pytest.raises(ValueError, match=f"mode={engine} makes no checkpoints: leave out"):
        planned(engine=Choice(engine), checkpoint=Checkpointing(every=2))
    assert planned(engine=Choice(engine)).spec.config["checkpoint"]["every"] == 0


@pytest.mark.parametrize("engine", PEERS)
def test_a_transport_that_they_do_not_use_is_refused(engine: str) -> None:
    with pytest.raises(ValueError, match=f"cluster.transport=memory with mode={engine}"):
        planned(engine=Choice(engine), cluster=ClusterConfig(transport="memory"))
    spec = planned(engine=Choice(engine)).spec
    assert (spec.mode, spec.policy, spec.backend, spec.world_size) == (engine, "sync", engine, 2)


def test_what_a_broken_collective_raises_is_told_from_the_users_errors() -> None:
    assert isinstance(broken(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:5] closed")), ExchangeBroken)
    assert isinstance(broken(torch.distributed.DistBackendError("NCCL is unwell")), ExchangeBroken)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        broken(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_signs_of_life_that_are_limited_come_to_an_end() -> None:
    beats: list[int] = []
    heart = Heartbeat(0.02, lambda: beats.append(1)).limited(3)
    for _ in range(2):
        before = len(beats)
        with heart:
            time.sleep(0.4)
        assert len(beats) - before <= 3
    assert len(beats) >= 2


class Halves(nn.Module):
    """Its parts have methods of their own, which a step calls."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Linear(6, 2)

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.odd(inputs)  # type: ignore[no-any-return]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.encode(inputs)


def _encoded(model: nn.Module, batch: Tensors) -> torch.Tensor:
    return nn.functional.cross_entropy(model.encode(batch[0]), batch[1])  # type: ignore[operator]


def halves() -> Task:
    return replace(toy.task(), model=Halves, loss=_encoded)


def test_a_step_that_uses_the_models_own_methods_hears_what_to_do(play: Play) -> None:
    with pytest.raises(RankFailed, match=r"the step uses the model's own encode, and PyTorch's .*nccl_sync takes it"):
        play("sync", "torch_ddp", halves)


def test_fully_shard_takes_the_models_own_methods(play: Play) -> None:
    assert own_methods(Halves) == {"encode"}
    assert play("sync", "torch_fsdp", halves).accuracy() > 0.9


class Attends(nn.Module):
    """Large enough for a group of its own, in which `forward` calls a method and then has further parameters to use."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 150_000), nn.Linear(150_000, 2)

    def attend(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.into(inputs)  # type: ignore[no-any-return]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(inputs))  # type: ignore[no-any-return]


def _attending() -> nn.Module:
    return nn.Sequential(Attends())


def attends() -> Task:
    return replace(toy.task(), model=_attending, optimizer=partial(torch.optim.SGD, lr=1e-5))


def test_fully_shard_takes_an_inner_group_with_a_method_of_its_own(play: Play) -> None:
    assert play("sync", "torch_fsdp", attends, epochs=1).state()
