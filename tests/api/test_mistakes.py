"""Ordinary mistakes with `Trainer`: one line that says what to write instead."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LinearLR
from torch.utils.data import DataLoader, TensorDataset

from ddp import RankFailed, Trainer
from ddp.trainer.mistakes import CheckedStep
from ddp.trainer.model_trial import sketch, sums
from tests.api.conftest import Make
from tests.api.trained import WORLDS
from tests.runtime import toy

pytestmark = pytest.mark.usefixtures("in_process")

NET = toy.net(norm=False)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"model_factory": NET}, "not a model: give lambda: Sequential(...), or lambda: copy.deepcopy(model)"),
        ({"model_factory": toy.net}, "model_factory is called as model_factory(), and takes (norm: "),
        (
            {"optimizer_factory": torch.optim.Adam(NET.parameters(), lr=0.1)},
            "not an optimizer: give lambda parameters: Adam(parameters, ...)",
        ),
        ({"optimizer_factory": lambda: None}, "is called as optimizer_factory(parameters), and takes ()"),
        ({"train_step": lambda batch: None}, "train_step is called as train_step(model, batch), and takes (batch)"),
        ({"epoch_callback": lambda epoch: None}, "is called as epoch_callback(epoch, worker), and takes (epoch)"),
        ({"augment": lambda batch: batch}, "augment is called as augment(batch, draws), and takes (batch)"),
        ({"collate_fn": 3}, "collate_fn must be a function, not 3"),
        ({"dataset": DataLoader(TensorDataset(*toy.data()))}, "give its own, dataset=loader.dataset, with batch_size"),
        ({"dataset": (row for row in toy.data())}, "generator is no data set: give tensors"),
        (
            {"num_workers": 2},
            "num_workers is no argument of Trainer: a thread of each rank reads ahead: write prefetch",
        ),
        ({"shuffle": False}, "for another order write sampler, such as lambda epoch: range(len(data))"),
        ({"pin_memory": True}, "leave it out"),
        ({"optimizer": torch.optim.SGD}, "give optimizer_factory, a function of the parameters that makes it"),
        ({"scheduler": LinearLR}, "write schedule, a function of the fraction of samples seen"),
        ({"lr": 0.1}, "the optimizer that optimizer_factory makes has it"),
        ({"colate_fn": list}, "did you mean 'collate_fn'"),
        ({"eval_batchsize": 3}, "did you mean 'eval_batch_size'"),
        ({"policy": "sync", "max_gradnorm": 3}, "did you mean 'max_grad_norm'"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_it_is_told_before_anything_starts(make: Make, change: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        make(**change)
    assert "\n" not in str(caught.value)


def test_a_model_in_evaluation_mode_is_refused_and_parts_in_it_are_not(make: Make) -> None:
    with pytest.raises(RankFailed, match=r"call model\.train\(\) in the factory"):
        make(world_size=1, model_factory=lambda: toy.net(norm=True).eval()).run().join()
    frozen = toy.net(norm=True)
    frozen[0].eval()
    make(world_size=1, model_factory=lambda: frozen).run().join()


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def backward_first(model: nn.Module, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    return loss


def backward_kept(model: nn.Module, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    loss.backward(retain_graph=True)
    return loss


def backward_of_another(model: nn.Module, batch: Any) -> Tensor:
    loss_of(model, batch).backward()
    return loss_of(model, batch)


def backward_and_cleared(model: nn.Module, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    model.zero_grad()
    return loss


def backward_and_detached(model: nn.Module, batch: Any) -> Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    return loss.detach()


BACKWARD = "leave backward to the Trainer"
STEPS: list[tuple[Any, str]] = [
    (backward_first, BACKWARD),
    (backward_kept, BACKWARD),
    (backward_of_another, BACKWARD),
    (backward_and_cleared, "return the loss, and leave backward, the optimizer's step and zero_grad to the engine"),
    (backward_and_detached, "leave out .detach(), torch.no_grad() and backward(), which is called for you"),
    (lambda model, batch: None, "not None: write return loss"),
    (lambda model, batch: {"loss": loss_of(model, batch)}, "give the rest to ddp.record_scalar(name, value)"),
    (lambda model, batch: (loss_of(model, batch), 1), "return the loss alone"),
    (lambda model, batch: loss_of(model, batch).item(), "leave out .item() or float()"),
    (lambda model, batch: model(batch[0])[:, 0], "write loss.mean()"),
    (
        lambda model, batch: loss_of(NET, batch),
        "the loss depends on no parameter of the model that train_step is given",
    ),
]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("policy", ["sync", "cadence"])
@pytest.mark.parametrize(("step", "remedy"), STEPS, ids=lambda value: getattr(value, "__name__", None))
def test_a_step_that_is_none_is_told(make: Make, world_size: int, policy: str, step: Any, remedy: str) -> None:
    if policy == "cadence" and world_size == 1:
        pytest.skip("alone, a policy means nothing")
    with pytest.raises(RankFailed, match=re.escape(remedy)) as caught:
        make(train_step=step, world_size=world_size, policy=policy, tolerate_loss=False).run().join()
    assert "\n" not in str(caught.value)


def test_gradients_of_another_kind_may_be_taken_in_a_step(make: Make) -> None:
    def penalised(model: nn.Module, batch: Any) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        model(inputs).sum().backward()  # fills gradients of the model, which are cleared again
        model.zero_grad()
        (slope,) = torch.autograd.grad(model(batch[0] + inputs).sum(), inputs, create_graph=True)
        return loss_of(model, batch) + slope.square().mean()

    make(train_step=penalised, world_size=1, epochs=1).run().join()


class Wrapped(nn.Module):
    """What torch's wrapper is to its model, without a process group."""


Wrapped.__name__ = "DistributedDataParallel"


@pytest.mark.parametrize(
    ("factory", "remedy"),
    [
        (
            lambda: nn.parallel.DistributedDataParallel(toy.net(norm=False)),
            "return the model itself, ranks are brought",
        ),
        (lambda: Wrapped(), "wrapped in DistributedDataParallel"),
        (lambda: nn.DataParallel(toy.net(norm=False)), "wrapped in DataParallel"),
        (
            lambda: toy.net(norm=False).to("meta"),
            "0.weight is on the meta device, without values: make the model on the CPU",
        ),
    ],
    ids=["ddp", "wrapped", "dp", "meta"],
)
def test_a_model_that_cannot_be_taken_is_told(make: Make, factory: Any, remedy: str) -> None:
    with pytest.raises(RankFailed, match=re.escape(remedy)):
        make(model_factory=factory, world_size=1).run().join()


def test_a_model_made_before_is_refused_and_frozen_parts_of_it_are_not(make: Make) -> None:
    """Seeds went on from each other, and replicas of a graph lost their weights, of which each now has a copy."""
    model, again = toy.net(norm=True), r"same 0\.weight each time, .* give lambda: copy\.deepcopy\(model\)"
    copied = make(mode="graph_sync", model_factory=lambda: copy.deepcopy(model)).run().join()
    first = make(mode="graph_sync", model_factory=lambda: model).run().join()
    assert all(torch.equal(first.params[name], value) for name, value in copied.params.items())
    with pytest.raises(RankFailed, match=again):
        make(mode="graph_sync", model_factory=lambda: model).run().join()
    with pytest.raises(RankFailed, match=again.replace("0", "0.0", 1)):
        make(world_size=1, model_factory=lambda: nn.Sequential(model, nn.Linear(2, 2))).run().join()
    make(world_size=1, model_factory=lambda: copy.deepcopy(model)).run().join()
    model.requires_grad_(False)
    make(world_size=1, model_factory=lambda: nn.Sequential(model, nn.Linear(2, 2))).run().join()


@pytest.mark.parametrize("step", [loss_of, lambda model, batch: batch.missing], ids=["step", "failing"])
def test_a_model_that_is_tried_keeps_its_modes(make: Make, step: Any) -> None:
    """A shared one went on in evaluation mode."""
    model = toy.net(norm=True)
    model[1].eval()
    modes = [module.training for module in model.modules()]
    parts = make(train_step=step, model_factory=lambda: model)._parts
    assert (sketch(parts, "accuracy") is None) == (step is not loss_of)
    assert sketch(parts, "accuracy") is None
    assert sums(parts, model) is False
    assert [module.training for module in model.modules()] == modes


held: list[Any] = []


def scheduled(parameters: Any) -> Any:
    made = torch.optim.SGD(parameters, lr=0.1)
    held[:] = [LinearLR(made)]
    return made


def bare(parameters: Any) -> Any:
    held[:] = [torch.optim.SGD(parameters, lr=0.1)]
    return held[0]


def stepping(model: nn.Module, batch: Any) -> Tensor:
    if not isinstance(held[-1], LambdaLR):
        held.append(LambdaLR(held[0], lambda step: 0.5**step))
    held[-1].step()
    return loss_of(model, batch)


def setting(epoch: int, worker: Any) -> None:
    held[0].param_groups[0]["lr"] = 0.01


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"optimizer_factory": scheduled}, "leave it out, and give schedule=lambda seen: factor"),
        (
            {"optimizer_factory": bare, "train_step": stepping},
            "the step set the learning rate to 0.05, which is set anew",
        ),
        (
            {"optimizer_factory": bare, "epoch_callback": setting},
            "the callback set the learning rate to 0.01, which is set",
        ),
    ],
    ids=["factory", "step", "callback"],
)
def test_a_rate_that_would_be_overwritten_is_told(make: Make, change: dict[str, Any], remedy: str) -> None:
    with pytest.raises(RankFailed, match=re.escape(remedy)):
        make(world_size=1, **change).run().join()


def test_what_a_step_may_do_is_left_alone(make: Make) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        torch.set_num_threads(1)
        model.zero_grad()
        return loss_of(model, batch).reshape(1)

    trainer: Trainer = make(train_step=step, epochs=1)
    trainer.run().join()


def test_a_last_batch_of_one_that_cannot_be_normalised_is_told_with_what_to_do() -> None:
    step = CheckedStep(lambda model, batch: model(batch).mean())
    model = nn.BatchNorm1d(3)
    assert step(model, torch.randn(2, 3)).shape == ()
    with pytest.raises(ValueError, match=r"got input size torch.Size.*drop_last=True leaves it out"):
        step(model, torch.randn(1, 3))


def test_a_file_for_a_folder_of_checkpoints_is_refused_before_the_run(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"checkpoint_folder=.*file is a file; give a folder"):
        make(world_size=1, checkpoint_folder=tmp_path / "file")


def test_a_package_of_the_users_called_bench_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "bench" / "__init__.py"
    theirs.parent.mkdir()
    theirs.touch()
    spec = importlib.util.spec_from_file_location("bench", theirs)
    monkeypatch.setattr("ddp.monitor.harness.importlib.util.find_spec", lambda name: spec)
    with pytest.raises(ValueError, match=f"^output needs the harness, .* {theirs.parent} has that name: rename that"):
        make(output=tmp_path / "runs", name="touch").run()
