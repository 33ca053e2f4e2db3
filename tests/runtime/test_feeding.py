"""What feeds a step, in real runs: augmentation, the same in every mode."""

from __future__ import annotations

from dataclasses import replace

import torch

from ddp.data import Draws
from ddp.runtime.task import Task, Tensors
from tests.runtime import toy
from tests.runtime.conftest import Play


def jitter(batch: Tensors, draws: Draws) -> Tensors:
    return (batch[0] + draws.uniform(6), batch[1])


def jittered() -> Task:
    return replace(toy.task(lr=0.5), augment=jitter)


def test_augmentation_is_the_same_on_several_ranks_as_on_one(play: Play) -> None:
    alone = play("sync", "nccl", jittered, world_size=1, batch_size=16)
    sync = play("sync", "nccl", jittered)
    plain = play("sync", "nccl", toy.task, world_size=1, batch_size=16)
    for name, value in alone.state().items():
        torch.testing.assert_close(sync.state()[name], value, rtol=0, atol=1e-5)
    assert plain.digests != alone.digests
