"""A loss that is a sum: `Trainer.run` warns of it, where it can be tried."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.replica.trainable import SUMMED
from ddp.trainer.sketch import warn_of_sum
from tests.api.conftest import Make

pytestmark = pytest.mark.usefixtures("in_process")


def summed(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def failing(model: nn.Module, batch: Any) -> Tensor:
    raise RuntimeError("not here")


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        ({"train_step": summed}, True),
        ({"train_step": summed, "world_size": 1, "accumulate": 2}, True),
        ({"train_step": summed, "world_size": 1}, False),  # no rank or micro-batch weighs it
        ({}, False),
        ({"train_step": failing}, False),
        ({"model_factory": lambda: None}, False),
        ({"train_step": summed, "dataset": [(torch.ones(2), 0)] * 16}, False),  # its samples are read by ranks alone
    ],
    ids=["ranks", "micro-batches", "alone", "mean", "step fails", "factory fails", "data set"],
)
def test_a_loss_that_is_a_sum_is_warned_of_without_a_folder_too(
    make: Make, change: dict[str, Any], warned: bool
) -> None:
    trainer, before = make(**change), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_sum(trainer._parts, trainer._job, ["cpu", "cpu"])
    assert [str(each.message) for each in caught] == [SUMMED] * warned
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_warns_of_a_sum_when_it_starts_and_a_second_one_tries_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(train_step=summed, optimizer_factory=lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    with pytest.warns(RuntimeWarning, match="return the mean"):
        handle = trainer.run()
    handle.join()
    monkeypatch.setattr("ddp.trainer.sketch.sums", untried)
    trainer.run().join()


def untried(*_: Any) -> bool:
    raise AssertionError("the loss was tried")


def test_no_model_is_made_in_the_script_where_ranks_have_gpus(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp.trainer.sketch.sums", untried)
    trainer = make(train_step=summed)
    warn_of_sum(trainer._parts, trainer._job, ["cuda:0", "cuda:1"])
    with pytest.raises(AssertionError, match="the loss was tried"):
        warn_of_sum(trainer._parts, trainer._job, ["cpu", "cpu"])
