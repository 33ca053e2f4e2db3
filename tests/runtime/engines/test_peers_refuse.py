"""PyTorch's own engines as peers: models that they train otherwise than one device would are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from ddp.core.errors import RankFailed
from ddp.replica.handle import WorkerHandle
from ddp.replica.task import Task, Tensors
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import slow


def _half_frozen() -> nn.Module:
    net = toy.net(norm=False)
    next(net.parameters()).requires_grad_(False)
    return net


def _unfreeze(epoch: int, worker: WorkerHandle) -> None:
    if epoch:
        worker.model.requires_grad_(True)


def unfreezing() -> Task:
    return replace(toy.task(), model=_half_frozen, epoch_callback=_unfreeze)


@pytest.mark.parametrize("engine", ["torch_ddp", *slow("torch_zero1", "torch_local_sgd")])
def test_what_is_unfrozen_during_training_is_refused(play: Play, engine: str) -> None:
    """Each rank trained it by itself."""
    with pytest.raises(RankFailed, match=r"parameter 0\.weight was unfrozen after training began"):
        play("sync", engine, unfreezing)


def _freeze(epoch: int, worker: WorkerHandle) -> None:
    if epoch:
        next(worker.model.parameters()).requires_grad_(False)


def freezing() -> Task:
    return replace(toy.task(), epoch_callback=_freeze)


@pytest.mark.parametrize(("task", "change"), [(unfreezing, "unfrozen"), (freezing, "frozen")])
def test_what_fully_shard_would_not_come_to_know_is_refused(play: Play, task: Callable[[], Task], change: str) -> None:
    """It had no effect on the sharded copy, and nothing was said."""
    with pytest.raises(RankFailed, match=rf"parameter 0\.weight was {change} after training began, when torch_fsdp"):
        play("sync", "torch_fsdp", task)


def _clamping(own_step: bool, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    made = torch.optim.SGD(parameters, lr=0.1)

    def clamp(*_: object) -> None:
        for parameter in parameters:
            parameter.data.clamp_(-0.2, 0.2)

    if own_step:
        made.step = clamp  # type: ignore[assignment]  # as users' scripts do
    else:
        made.register_step_post_hook(clamp)
    return made


@pytest.mark.parametrize(("engine", "own_step"), [("torch_zero1", True), ("torch_zero1", False), ("torch_fsdp", False)])
def test_hooks_on_steps_that_other_optimizers_or_tensors_make_are_refused(
    play: Play, engine: str, own_step: bool
) -> None:
    """They had no effect, and nothing was said."""
    task = partial(replace, toy.task(), optimizer=partial(_clamping, own_step))
    with pytest.raises(RankFailed, match=rf"SGD has a hook on its step, which would have no effect in {engine}: take"):
        play("sync", engine, task, epochs=1)


def _last_only(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters[-2:], lr=0.1)


def _cleared(model: nn.Module, batch: Tensors) -> torch.Tensor:
    assert all(parameter.grad is None for parameter in model.parameters())
    return toy.loss(model, batch)


def tuning() -> Task:
    return replace(toy.task(), optimizer=_last_only, loss=_cleared)


@pytest.mark.parametrize("engine", ["torch_ddp", *slow("torch_fsdp")])
def test_gradients_that_no_optimizer_has_are_cleared(play: Play, engine: str) -> None:
    """They added up, and the judge found no average of the ranks' gradients."""
    assert len(play("sync", engine, tuning, epochs=1).digests) == 1


def _hooked() -> nn.Module:
    net = toy.net(norm=False)
    next(net.parameters()).register_hook(torch.sign)  # type: ignore[no-untyped-call]
    return net


def _weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 2)))


def of_model(model: Callable[[], nn.Module]) -> Task:
    return replace(toy.task(), model=model)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (_hooked, r"no hooks on gradients, and 0\.weight has one: take mode=zero3"),
        *slow((_weight_norm, r"cannot be copied: take torch\.nn\.utils\.parametrizations\.weight_norm")),
    ],
)
def test_fully_shard_refuses_what_its_copy_would_lack(play: Play, model: Callable[[], nn.Module], line: str) -> None:
    """Pruned weights came back."""
    with pytest.raises(RankFailed, match=line):
        play("sync", "torch_fsdp", partial(of_model, model), epochs=1)


class Parts(nn.Module):
    """Uses one more part in the first steps, or in the later ones."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.parts, self.first, self.steps = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)]), first, 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        both = self.first is (self.steps < 3)
        return torch.stack([part(inputs) for part in self.parts[: 1 + both]]).sum(0)


def changing(first: bool) -> Task:
    return replace(toy.task(), model=partial(Parts, first), static_graph=True)


@pytest.mark.parametrize("first", [False, *slow(True)])
def test_a_static_graph_that_changes_is_refused_in_words(play: Play, first: bool) -> None:
    """PyTorch's own words name a setting that no user has."""
    with pytest.raises(RankFailed, match=r"other parameters than in the first step, .*nccl_sync and zero1 take it"):
        play("sync", "torch_ddp", partial(changing, first), epochs=1)
