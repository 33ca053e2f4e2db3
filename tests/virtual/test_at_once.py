"""What users give trains many ranks at once as it trains one by one, or one by one it stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import Dataset

from ddp.core.messages.events import Ready
from ddp.core.settings.virtual_time import VirtualTime
from ddp.data.dataset import as_source, collated
from ddp.engine import solo
from ddp.replica.task import Task
from ddp.trainer.mistakes import CheckedStep
from ddp.virtual import engine
from ddp.virtual.eligibility import unfit
from tests.runtime import toy
from tests.runtime.conftest import Play

INPUTS, LABELS = toy.data()


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are drawn anew at each reading."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index] + torch.randn(6), LABELS[index]


class Scaled(nn.Module):
    """The toy's net, with a parameter of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = toy.net(norm=False), nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs) * self.scale
        return outputs


def transposed(samples: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = zip(*samples, strict=True)
    return torch.stack(inputs, 1), torch.stack(labels)


def task(**parts: Any) -> Task:
    return replace(toy.task(), **parts)


def of(data: Any, collate: Callable[[Any], Any] | None = None) -> Task:
    return task(train_data=lambda: collated(as_source(data, collate), collate))


def stepping(step: Callable[[nn.Module, Any], Tensor]) -> Task:
    return task(loss=CheckedStep(step))


def detached(model: nn.Module, batch: Any) -> Tensor:
    return toy.loss(model, batch).detach()


def scaled() -> Task:
    return task(model=Scaled)


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_many_at_once_take_the_loss_of_a_user_and_refuse_a_detached_one(play: Play, policy: str) -> None:
    """Ranks that share their steps were told of a good loss that it has no gradient."""
    more: dict[str, Any] = {"virtual": VirtualTime(path="vectorised"), "engine": engine, "epochs": 1}
    assert play(policy, "nccl", partial(stepping, toy.loss), world_size=3, **more).state()
    with pytest.raises(ValueError, match=r"without gradient: leave out \.detach\(\)"):
        play(policy, "nccl", partial(stepping, detached), world_size=3, **more)


@pytest.mark.parametrize(
    "given", [(Noisy(),), ((INPUTS, LABELS), transposed), (list(zip(INPUTS, LABELS, strict=True)),)]
)
def test_samples_that_are_put_together_batch_by_batch_are_read_rank_by_rank(play: Play, given: Any) -> None:
    """The batches of all ranks were read as one, and cut: other noise, and other members of a batch."""
    job = play("cadence", "nccl", toy.task, engine=engine).job
    assert unfit(replace(job, task=partial(of, *given))) == "the data set gives batches, not rows"


@pytest.mark.parametrize("policy", ["cadence", "sync"])
@pytest.mark.parametrize("task", [scaled, toy.summed])
def test_clipping_is_as_one_by_one(play: Play, policy: str, task: Callable[[], Task]) -> None:
    """Of a parameter without dimensions, and of two whose gradients share memory."""
    ends = []
    for path in ("sequential", "vectorised"):
        more: dict[str, Any] = {"virtual": VirtualTime(path=path), "engine": engine, "max_grad_norm": 0.1}
        played = play(policy, "nccl", task, world_size=3, epochs=1, **more)
        ends.append(torch.cat([value.flatten() for value in played.state().values()]))
    assert torch.allclose(*ends, atol=1e-6)


def hooked(place: str) -> Task:
    """The toy's net with a hook that halves."""

    def halved(module: nn.Module, inputs: Any, outputs: Tensor) -> None:
        if outputs.requires_grad:
            # torch has no types for it
            outputs.register_hook(lambda gradient: gradient / 2)  # type: ignore[no-untyped-call]

    def net() -> nn.Module:
        model: Any = toy.net(norm=False)
        if place == "gradient":
            model[0].weight.register_hook(lambda gradient: gradient / 2)
        elif place == "gradient kept":
            model[0].weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.div_(2))
        elif place == "backward":
            model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0] / 2,))
        elif place == "backward, as once":
            model[1].register_backward_hook(lambda module, inner, outer: (inner[0] / 2,))
        elif place == "output":
            model[0].register_forward_hook(halved)
        elif place == "forward":
            model[0].register_forward_hook(lambda module, inputs, outputs: outputs / 2)
        return model

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.1)
        if place == "step":
            made.register_step_post_hook(lambda *_: [p.data.clamp_(-0.05, 0.05) for p in parameters])
        return made

    return task(model=net, optimizer=optimizer)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("gradient", "0.weight has a hook on its gradient"),
        ("gradient kept", "0.weight has a hook on its gradient"),
        ("backward", "1 has a hook on its backward pass"),
        ("backward, as once", "1 has a hook on its backward pass"),
        ("output", "its gradients are others in a step of several ranks at once"),
        ("step", "SGD has a hook on its step"),
        ("forward", ""),
    ],
)
def test_a_hook_that_one_operation_would_not_call_is_said(play: Play, place: str, reason: str) -> None:
    """Sixteen ranks trained as if it were not there."""
    job = play("cadence", "nccl", toy.task, engine=engine).job
    assert unfit(replace(job, task=partial(hooked, place))) == reason


def test_a_hook_on_the_steps_of_all_optimizers_is_said(play: Play) -> None:
    job = play("cadence", "nccl", toy.task, engine=engine).job
    hook = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert unfit(job) == "SGD has a hook on its step"
    finally:
        hook.remove()
    assert not unfit(job)


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_hooks_on_the_forward_pass_train_at_once(play: Play, policy: str) -> None:
    ends = []
    for path in ("sequential", "vectorised"):
        more: dict[str, Any] = {"virtual": VirtualTime(path=path), "engine": engine, "epochs": 1}
        played = play(policy, "nccl", partial(hooked, "forward"), world_size=3, **more)
        ends.append(torch.cat([value.flatten() for value in played.state().values()]))
    assert torch.allclose(*ends, atol=1e-6)


def test_data_that_is_split_by_drawn_numbers_is_that_of_solo(play: Play) -> None:
    (alone,) = play("sync", "nccl", toy.drawn, world_size=1, epochs=1, engine=solo).of(Ready)
    for each in play("sync", "nccl", toy.drawn, epochs=1, engine=engine).of(Ready):
        assert (each.digest, each.data) == (alone.digest, alone.data)
