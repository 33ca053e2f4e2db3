"""What users give trains many ranks at once as it trains one by one, or one by one it stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddp.core.errors import RankFailed
from ddp.core.settings.virtual_time import VirtualTime
from ddp.data.dataset import as_source, collated
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
    with pytest.raises(RankFailed, match=r"without gradient: leave out \.detach\(\)"):
        play(policy, "nccl", partial(stepping, detached), world_size=3, **more)


@pytest.mark.parametrize(
    "given", [(Noisy(),), ((INPUTS, LABELS), transposed), (list(zip(INPUTS, LABELS, strict=True)),)]
)
def test_samples_that_are_put_together_batch_by_batch_are_read_rank_by_rank(play: Play, given: Any) -> None:
    """The batches of all ranks were read as one, and cut: other noise, and other members of a batch."""
    job = play("cadence", "nccl", toy.task, engine=engine).job
    assert unfit(replace(job, task=partial(of, *given))) == "the data set gives batches, not rows"


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_a_parameter_without_dimensions_is_clipped_as_one_by_one(play: Play, policy: str) -> None:
    ends = []
    for path in ("sequential", "vectorised"):
        more: dict[str, Any] = {"virtual": VirtualTime(path=path), "engine": engine, "max_grad_norm": 0.1}
        played = play(policy, "nccl", scaled, world_size=3, epochs=1, **more)
        ends.append(torch.cat([value.flatten() for value in played.state().values()]))
    assert torch.allclose(*ends, atol=1e-6)
