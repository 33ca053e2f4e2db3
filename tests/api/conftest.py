"""What tests of the public interface share: a small classifier to train, and the promise that nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import Trainer
from tests.runtime import toy
from tests.runtime.conftest import in_process, play, ranks_alive

__all__ = ["in_process", "play"]  # fixtures

Make = Callable[..., Trainer]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    assert ranks_alive() == []
    assert not {"ddp-run", "ddp-timeline", "ddp-monitor"} & {thread.name for thread in threading.enumerate()}


@pytest.fixture
def make() -> Make:
    """A trainer of the toy; keywords replace arguments."""

    def trainer(**changes: Any) -> Trainer:
        arguments: dict[str, Any] = {
            "model_factory": lambda: toy.net(norm=True),
            "optimizer_factory": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "train_step": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
            "dataset": toy.data(),
            "batch_size": 8,
            "epochs": 2,
            "seed": 3,
            "world_size": 2,
            "lr_scale_ratio": 0.0,
            "deadline_s": 30.0,
        }
        return Trainer(**{**arguments, **changes})

    return trainer


def right(model: nn.Module, batch: Any) -> Tensor:
    """Mean accuracy of a batch."""
    return (model(batch[0]).argmax(1) == batch[1]).double().mean()
