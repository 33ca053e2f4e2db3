"""A loss that is a sum over the batch is told from a mean by trying it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.trainer.model_trial import sums
from tests.api.conftest import Make

pytestmark = pytest.mark.usefixtures("in_process")


def summed(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def partly(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss as of a variational autoencoder: a mean, and a divergence that is a sum."""
    outputs = model(batch[0])
    return nn.functional.cross_entropy(outputs, batch[1]) + 0.1 * outputs.square().sum()


def contrasting(model: nn.Module, batch: Any) -> Tensor:
    """Grows with the number of samples, but not by as much with each."""
    outputs = model(batch[0])
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def failing(model: nn.Module, batch: Any) -> Tensor:
    raise RuntimeError("not here")


def leaving(model: nn.Module, batch: Any) -> Tensor:
    raise SystemExit("not here")


@pytest.mark.parametrize(
    ("change", "is_sum"),
    [
        ({"train_step": summed}, True),
        ({"train_step": partly}, True),
        ({"train_step": contrasting}, False),
        ({}, False),
        ({"train_step": failing}, False),
        ({"train_step": leaving}, False),
        ({"model_factory": lambda: None}, False),
    ],
    ids=["sum", "partly a sum", "contrast", "mean", "step fails", "step leaves", "factory fails"],
)
def test_a_loss_that_is_a_sum_is_told(make: Make, change: dict[str, Any], is_sum: bool) -> None:
    trainer, before = make(**change), torch.get_rng_state()
    assert sums(trainer._parts) is is_sum
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_without_a_folder_makes_no_model_in_the_script(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the factory does, it does in ranks alone: it may start processes, or take a GPU's memory."""
    made: list[Any] = []
    monkeypatch.setattr("ddp.trainer.model_trial.make_model", made.append)
    make(train_step=summed).run().join()
    assert made == []
