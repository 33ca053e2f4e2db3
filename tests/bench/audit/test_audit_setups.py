"""The bundled set-ups are what is committed of them, and an error in one is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.audit.bundled import setups
from bench.audit.bundled.setups import SETUPS, key, scheduled, setup
from bench.models import load
from bench.models.attention import Layer
from bench.models.data import data_set
from bench.models.parts import SCHEDULES
from ddp.replica.task import Task
from tests.bench.audit.audited import ordered, train_alone
from tests.runtime import toy

TABLE: dict[str, Any] = json.loads(SETUPS.read_text(encoding="utf-8"))


def task_of(model: str, other: str = "") -> tuple[Task, torch.Tensor]:
    """The task of a model's quick recipe, perhaps on other data, and a sample of them."""
    recipe = load(model).recipes["quick"]
    recipe = replace(recipe, data=other or recipe.data)
    data = data_set(recipe.data, options=recipe.data_options)
    sample = torch.zeros(data.shape, dtype=torch.int64 if data.is_text else torch.float32)
    return load(model).task(recipe, "data"), sample


def test_schedules_are_as_committed() -> None:
    assert {name for name in TABLE if name.startswith("schedule ")} == {f"schedule {name}" for name in SCHEDULES}
    for name, schedule in SCHEDULES.items():
        assert scheduled(schedule) == pytest.approx(TABLE[f"schedule {name}"], abs=1e-9)


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The order of some audit."""
    return ordered(*train_alone(tmp_path_factory.mktemp("setups"), toy.task, epochs=1))


def without_decay(task: Task) -> Task:
    return replace(task, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9))


def of_modules(change: Callable[[nn.Module], None], task: Task) -> Task:
    def model() -> nn.Module:
        made = task.model()
        made.apply(change)
        return made

    return replace(task, model=model)


def other_epsilon(module: nn.Module) -> None:
    if hasattr(module, "running_var"):
        module.eps = 1e-2


class Capped(nn.Module):
    """Caps what a model gives: no module of it says so."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(model.__dict__)
        self._forward = model.forward

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._forward(inputs)
        return out.clamp(max=0.1)


def smoothed(task: Task) -> Task:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.05)

    return replace(task, loss=loss)


def wider(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.mul_(1.5)


def frozen(module: nn.Module) -> None:
    if isinstance(module, nn.BatchNorm2d):
        module.weight.requires_grad_(False)


def detached(module: nn.Module) -> None:
    """Keep the outputs, and have no gradient of what lies below the last layer."""
    if isinstance(module, nn.Linear) and module.out_features == 10:
        module.register_forward_pre_hook(lambda _, inputs: (inputs[0].detach(),))


def found(order: Any, model: str, change: Callable[[Task], Task] = lambda task: task, data: str = "") -> list[str]:
    """What is said of a set-up."""
    task, sample = task_of(model, data)
    recipe = load(model).recipes["quick"]
    named = replace(order, model=model, data=data or recipe.data, schedule=recipe.schedule)
    items = list(setup(named, change(task), sample))
    assert len(items) == 1
    return [item.line for item in items if item.outcome == "different"]


@pytest.mark.parametrize("model", ["mlp", "lenet", "logistic", "resnet", "conv_ae", "gpt_nano"])
def test_sound_set_ups_are_as_committed(order: Any, model: str) -> None:
    assert found(order, model) == []


def test_losses_in_units_of_pixels_are_those_of_their_data(order: Any) -> None:
    assert found(order, "conv_ae", data="digits") == []
    assert "loss is" in found(order, "conv_ae", lambda task: task_of("conv_ae")[0], "digits")[0]


def test_a_set_up_on_data_of_a_users_own_is_held_to_no_others(order: Any) -> None:
    task, sample = task_of("conv_ae")
    named = replace(order, model="conv_ae", data="stains", schedule=load("conv_ae").recipes["quick"].schedule)
    assert [item.outcome for item in setup(named, task, sample)] == ["equal"]  # of its schedule


@pytest.mark.parametrize(
    ("model", "change", "sign"),
    [
        ("resnet", without_decay, "the optimizer is SGD("),
        ("lenet", partial(of_modules, other_epsilon), "the modules is"),
        ("lenet", smoothed, "of chosen parameters, loss is"),
        ("mlp", lambda task: replace(task, model=lambda: Capped(task.model())), "committed"),
        ("lenet", partial(of_modules, wider), "parameter 6 is initialized with RMS 0.1084, committed: 0.07228"),
        ("lenet", partial(of_modules, frozen), "the modules is"),
        ("lenet", partial(of_modules, detached), "number 0 has a gradient of 0, committed: 0.03968"),
        ("mlp", lambda task: replace(task, schedule=lambda seen: 1.0 - seen), "schedule cosine gives"),
    ],
)
def test_an_error_of_a_set_up_is_named(order: Any, model: str, change: Callable[[Task], Task], sign: str) -> None:
    assert any(sign in line for line in found(order, model, change))


def test_dropout_shows_though_no_module_says_it(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.models import gpt_nano

    monkeypatch.setattr(gpt_nano, "DROPOUT", 0.2)
    assert found(order, "gpt_nano")


def test_attention_that_drops_nothing_is_named(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes less of a difference by chance than the draws of the rest."""
    attend = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional,
        "scaled_dot_product_attention",
        lambda *parts, dropout_p, **more: attend(*parts, dropout_p=0.0, **more),
    )
    assert "the dropout is 0.1, 0, 0.1, 0.1, 0, 0.1, 0.1" in found(order, "gpt_nano")[0]


class MoreInBackward(torch.autograd.Function):
    """Gives its input, and a gradient that is another."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 1.01


def test_layers_computed_again_with_other_dropout_are_named(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their outputs are right, and so are gradients without dropout."""
    forward = Layer.forward

    def again(layer: Layer, x: torch.Tensor) -> Any:
        return checkpoint(partial(forward, layer), x, use_reentrant=False, preserve_rng_state=False)

    monkeypatch.setattr(Layer, "forward", lambda layer, x: again(layer, x) if layer.training else forward(layer, x))
    assert "in training, the slope without gradient is" in found(order, "gpt_nano")[0]


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_a_gradient_that_is_another_in_training_is_named(order: Any, model: str) -> None:
    def change(module: nn.Module) -> None:
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda own, _, out: MoreInBackward.apply(out) if own.training else out)

    assert "in training, the slope without gradient is" in found(order, model, partial(of_modules, change))[0]


def test_a_loss_that_is_another_in_training_is_named(order: Any) -> None:
    def louder(module: nn.Module) -> None:
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda own, _, out: out * 1.5 if own.training else out)

    assert "in training, the loss is" in found(order, "mlp", partial(of_modules, louder))[0]


def test_nothing_is_said_of_others(order: Any) -> None:
    assert list(setup(replace(order, model="", schedule=""), toy.task(), torch.zeros(6))) == []


def test_names_tell_data_and_depth_apart() -> None:
    assert key("resnet", "stains", torch.zeros(3, 8, 8), None) == "resnet on stains, 3x8x8"
    assert key("gpt_nano", "tales", torch.zeros(9, dtype=torch.int64), None) == "gpt_nano on tales, text of 9"
    assert key("resnet", "digits", torch.zeros(1, 8, 8), 8).endswith(", depth 8")
    assert setups.POINTS == 20
    assert Path(SETUPS).name == "setups.json"
