"""Numbers come out as one rank would have them, whatever way a user's functions take."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ddp import Trainer, record_scalar
from ddp.replica.handle import WorkerHandle
from ddp.replica.scalars import Scalars
from tests.api.conftest import Make
from tests.runtime import toy

pytestmark = pytest.mark.usefixtures("in_process")


def losses(trainer: Trainer) -> list[float]:
    handle, found = trainer.run(), []
    while (metrics := handle.next_metrics()) is not None:
        found.append(metrics.loss)
    handle.join()
    return found


def own_gradients(add: bool) -> Any:
    def step(model: nn.Module, batch: Any) -> Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            elif add:
                parameter.grad.add_(gradient)
            else:
                parameter.grad = parameter.grad + gradient
        return loss.detach().requires_grad_()

    return step


@pytest.mark.parametrize("add", [False, True])
def test_gradients_that_a_step_takes_itself_are_averaged(make: Make, add: bool) -> None:
    def task(size: int, step: Any) -> dict[str, Any]:
        return {
            "model_factory": lambda: toy.net(norm=False),
            "world_size": size,
            "batch_size": 16 // size,
            "train_step": step,
        }

    def usual(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    found = losses(make(policy="sync", backend="nccl", **task(2, own_gradients(add))))
    assert found == pytest.approx(losses(make(**task(1, usual))), rel=1e-4)


@pytest.mark.parametrize("world_size", [1, 2])
def test_numbers_of_numpy_go_into_checkpoints_and_out_of_them(make: Make, world_size: int, tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        noise = float(np.random.randn()) + random.gauss(0.0, 1.0)
        return nn.functional.cross_entropy(model(batch[0] + 0.1 * noise), batch[1])

    settings: dict[str, Any] = {
        "train_step": step,
        "schedule": lambda fraction: np.cos(fraction),
        "optimizer_factory": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=np.float64(1e-4)),
        "world_size": world_size,
        "policy": "sync",
        "backend": "nccl",
    }
    whole = make(**settings, epochs=3).run().join()
    first = make(**settings, epochs=3, checkpoint_folder=tmp_path, checkpoint_unit="epochs")
    first.run().join()
    resumed = make(**settings, epochs=3, resume=sorted(tmp_path.glob("0*"))[0]).run().join()
    assert all(torch.equal(whole.params[name], value) for name, value in resumed.params.items())


def test_a_run_in_place_draws_numbers_of_its_seed_and_puts_the_generators_back(make: Make) -> None:
    def model() -> nn.Module:
        net = toy.net(norm=True)
        nn.init.constant_(net.get_submodule("0").weight, np.random.rand() + random.random())
        return net

    before = random.getstate(), np.random.get_state()[1].tolist()
    state = make(model_factory=model, world_size=1).run().join()
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    random.random(), np.random.rand()
    again = make(model_factory=model, world_size=1).run().join()
    assert all(torch.equal(again.params[name], value) for name, value in state.params.items())


def opened() -> Any:
    torch.manual_seed(0)
    return lambda: nn.Linear(6, 2)


class Seeding:
    """A factory whose module seeds torch at its top, when a rank opens its parcel."""

    def __reduce__(self) -> Any:
        return opened, ()

    def __call__(self) -> nn.Module:
        return nn.Linear(6, 2)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_module_that_seeds_torch_where_it_is_imported_leaves_the_initial_values_as_they_are(
    make: Make, seed: int
) -> None:
    def start(**more: Any) -> dict[str, Tensor]:
        still: dict[str, Any] = {"optimizer_factory": lambda p: torch.optim.SGD(p, lr=0.0), "epochs": 1, "seed": seed}
        return make(**still, policy="sync", backend="nccl", **more).run().join().params

    alone, two = (start(model_factory=Seeding(), world_size=size) for size in (1, 2))
    assert all(torch.equal(alone[name], value) for name, value in two.items())


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return "word " * (index + 1)


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_of_words_are_evaluated(make: Make, world_size: int) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        return model(torch.tensor([[float(len(text))] * 6 for text in batch]) / 100).square().mean()

    handle = make(
        model_factory=lambda: toy.net(norm=False),
        train_step=step,
        dataset=Words(),
        eval_dataset=Words(),
        eval_step=lambda model, batch: 1.0,
        world_size=world_size,
    ).run()
    seen = [metrics.eval for metrics in iter(handle.next_metrics, None)]
    handle.join()
    assert seen == [1.0, 1.0]


def test_the_default_type_is_that_of_the_script(make: Make) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        kind = next(model.parameters()).dtype
        return nn.functional.cross_entropy(model(batch[0].to(kind)), batch[1])

    torch.set_default_dtype(torch.float64)
    try:
        state = make(train_step=step, model_factory=lambda: nn.Linear(6, 2)).run().join()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.dtype for value in state.params.values()} == {torch.float64}


@pytest.mark.parametrize("world_size", [1, 2])
def test_data_may_come_out_of_a_computation(make: Make, world_size: int) -> None:
    inputs, labels = toy.data()
    weight = torch.ones(inputs.shape[1], requires_grad=True)
    assert len(losses(make(dataset=(inputs * weight, labels), world_size=world_size))) == 2
    assert weight.grad is None


def test_a_step_that_is_undone_records_nothing() -> None:
    scalars = Scalars()
    for value, undone in ((1.0, False), (torch.tensor(20.0), True), (300.0, False), (4000.0, True)):
        scalars.begin()
        with scalars:
            record_scalar("seen", value)
        if undone:
            scalars.undo()
    assert scalars.drain() == (("seen", 301.0, 2),)


@torch.no_grad()
def apart(epoch: int, worker: WorkerHandle) -> None:
    next(worker.model.parameters()).add_(0.1 * worker.rank)


@pytest.mark.filterwarnings("ignore:the ranks ended with different models:RuntimeWarning")
def test_ranks_that_end_apart_are_told_of(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ddp.trainer.handle.warnings.warn", lambda text, *more, **named: said.append(text))
    make(epoch_callback=apart, policy="sync", backend="nccl").run().join()
    assert len(said) == 1
    assert "must be the same on every rank" in said[0]
    make(policy="sync", backend="nccl").run().join()
    assert len(said) == 1


class Bags:
    """Samples of unequal length, put together as `EmbeddingBag` takes them: all words, where each sample begins, labels."""

    def __len__(self) -> int:
        return 23

    def to(self, device: torch.device) -> Bags:
        return self

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        lengths = indices % 5 + 1
        return torch.arange(int(lengths.sum())) % 7, lengths.cumsum(0) - lengths, indices.double()


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_weighs_samples_alike_whatever_a_batch_looks_like(make: Make, world_size: int) -> None:
    handle = make(
        model_factory=lambda: nn.EmbeddingBag(7, 1),
        train_step=lambda model, batch: model(*batch[:2]).square().mean(),
        dataset=Bags(),
        eval_dataset=Bags(),
        eval_step=lambda model, batch: (batch[2].mean() + 1, batch[2].mean()),
        eval_batch_size=5,
        world_size=world_size,
    ).run()
    seen = [(metrics.eval_loss, metrics.eval) for metrics in iter(handle.next_metrics, None)]
    handle.join()
    assert seen == [(pytest.approx(12.0), pytest.approx(11.0))] * 2


def test_ranks_see_the_environment_and_settings_of_torch_as_they_are_when_a_run_begins(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model() -> nn.Module:
        net = toy.net(norm=False)
        seen = (
            os.environ.get("DDP_TEST_LATE"),
            "DDP_TEST_GONE" in os.environ,
            torch.are_deterministic_algorithms_enabled(),
        )
        assert seen == ("here", False, True), seen
        return net

    monkeypatch.setenv("DDP_TEST_GONE", "1")
    make(epochs=1).run().join()  # at the latest now there is a server that ranks are forked from
    monkeypatch.delenv("DDP_TEST_GONE")
    monkeypatch.setenv("DDP_TEST_LATE", "here")
    torch.use_deterministic_algorithms(True)
    try:
        make(model_factory=model, epochs=1).run().join()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_a_callback_draws_is_the_same_on_all_ranks(make: Make) -> None:
    def reset(epoch: int, worker: Any) -> None:
        if epoch == 1:
            worker.model.get_submodule("0").reset_parameters()

    settings: dict[str, Any] = {
        "model_factory": lambda: toy.net(norm=False),
        "optimizer_factory": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        "epoch_callback": reset,
        "policy": "sync",
    }
    one, two = (make(**settings, world_size=size).run().join() for size in (1, 2))
    assert all(torch.equal(one.params[name], value) for name, value in two.params.items())


def test_a_run_of_steps_needs_no_epochs(make: Make) -> None:
    assert len(losses(make(steps=3, epochs=None))) == 1
