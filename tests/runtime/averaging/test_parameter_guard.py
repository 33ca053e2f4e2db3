"""A training step that changes parameters itself, or steps an optimizer: refused by name, in every mode."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.backends import BACKENDS, paired_backends
from ddp.core.errors import RankFailed
from ddp.replica.evidence.parameter_guard import StepParameterGuard
from ddp.replica.task import Task, Tensors
from ddp.sharding.units import ShardedParameter
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import every

pytestmark = pytest.mark.usefixtures("in_process")

MODES = [
    *(("elche", policy, backend, 2) for policy in ("sync", "cadence", "async") for backend in ("nccl", "cpu")),
    *(("elche", "sync", backend, 2) for backend in BACKENDS if backend not in paired_backends()),
    *(("graph", policy, "nccl", 2) for policy in ("sync", "cadence")),
    ("elche", "sync", "nccl", 1),
]
SHARDED = ("zero3", "torch_fsdp")
"""There a step sees copies of what lies in shards: a write through `.data` goes to one of these."""


def named(mode: tuple[str, str, str, int]) -> str:
    return "-".join(map(str, mode))


def run(play: Play, mode: tuple[str, str, str, int], task: Callable[[], Task]) -> None:
    engine, policy, backend, world_size = mode
    where = "ddp.graph.engine" if engine == "graph" else f"ddp.engine.{engine}"
    play(policy, backend, task, engine=importlib.import_module(where), world_size=world_size)


def stepping(engines_own: bool = True) -> Task:
    """As in a loop of one's own; with an optimizer of one's own, or the one that was given away."""
    made: dict[str, torch.optim.Optimizer] = {}

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        held = list(parameters)
        kept = torch.optim.SGD(held, lr=0.1)
        made["own"] = kept if engines_own else torch.optim.Adam(held, lr=0.1)
        return kept

    def loss(model: nn.Module, batch: Tensors) -> Tensor:
        value = toy.loss(model, batch)
        made["own"].step()
        return value

    return replace(toy.task(), optimizer=optimizer, loss=loss)


def own_adam() -> Task:
    return stepping(engines_own=False)


@torch.no_grad()
def clamp(weight: Tensor) -> None:
    weight.clamp_(-0.01, 0.01)


def clamp_data(weight: Tensor) -> None:
    weight.data.clamp_(-0.01, 0.01)


def clamping(how: Callable[[Tensor], None]) -> Task:
    def loss(model: nn.Module, batch: Tensors) -> Tensor:
        value = toy.loss(model, batch)
        how(next(model.parameters()))
        return value

    return replace(toy.task(), loss=loss)


def clamped() -> Task:
    return clamping(clamp)


def clamped_data() -> Task:
    return clamping(clamp_data)


@pytest.mark.parametrize("mode", every(2, [(mode,) for mode in MODES]), ids=named)
def test_a_step_that_steps_the_optimizer_is_told_to_return_the_loss(
    play: Play, mode: tuple[str, str, str, int]
) -> None:
    with pytest.raises(RankFailed, match=r"ValueError: the training step called SGD\.step\(\), .* return the loss"):
        run(play, mode, stepping)


@pytest.mark.parametrize("mode", every(2, [(mode,) for mode in MODES if mode[2] != "torch_fsdp"]), ids=named)
def test_a_parameter_that_a_step_changes_is_named(play: Play, mode: tuple[str, str, str, int]) -> None:
    with pytest.raises(RankFailed, match=r"ValueError: the training step changed parameter 0\.weight, which only the"):
        run(play, mode, clamped)


@pytest.mark.parametrize("mode", every(2, [(mode,) for mode in MODES if mode[2] not in SHARDED]), ids=named)
def test_behind_the_back_of_torch_too(play: Play, mode: tuple[str, str, str, int]) -> None:
    with pytest.raises(RankFailed, match=r"ValueError: the training step changed parameter 0\.weight, which only the"):
        run(play, mode, clamped_data)


def test_what_a_step_may_change_it_may(play: Play) -> None:
    """Buffers, spectral norms among them, gradients, and an optimizer of its own for what is none of the model's."""
    aside = nn.Parameter(torch.zeros(1))
    other = torch.optim.SGD([aside], lr=0.1)

    def model() -> nn.Module:
        net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 2))
        nn.utils.parametrizations.weight_norm(net[0])
        nn.utils.parametrizations.spectral_norm(net[2])
        return net

    def loss(model: nn.Module, batch: Tensors) -> Tensor:
        aside.grad = torch.ones(1)
        other.step()
        return toy.loss(model, batch)

    play("sync", "nccl", lambda: replace(toy.task(), model=model, loss=loss), world_size=1)
    assert float(aside.detach()) < 0


def test_an_optimizer_of_ones_own_over_the_models_parameters_is_refused_too(play: Play) -> None:
    with pytest.raises(RankFailed, match=r"the training step called Adam\.step\(\)"):
        play("cadence", "nccl", own_adam, world_size=1)


def data_too(parameter: nn.Parameter) -> None:
    parameter.data.add_(1.0)


@torch.no_grad()
def in_place(parameter: nn.Parameter) -> None:
    parameter.add_(1.0)


@pytest.mark.parametrize(
    ("how", "steps"), [(in_place, [0, 1, 2, 4, 8, 16, 24, 32]), (data_too, [0, 1, 2, 4, 8, 16, 32])]
)
def test_what_begins_late_is_found_late_and_not_never(how: Callable[[nn.Parameter], None], steps: list[int]) -> None:
    """A limit on weights may bite after a while; looking in every step would cost a small model too much."""
    model = nn.Linear(2, 2)
    watch = StepParameterGuard(list(model.named_parameters()), torch.optim.SGD(model.parameters()))
    found = []
    for step in range(40):
        watch.begin()
        how(model.bias)
        try:
            watch.end()
        except ValueError as error:
            found.append((step, "changed parameter bias, which" in str(error)))
    assert found == [(step, True) for step in steps]


def test_of_many_parameters_the_first_is_named() -> None:
    model = nn.Linear(2, 2)
    watch = StepParameterGuard(list(model.named_parameters()), torch.optim.SGD(model.parameters()))
    watch.begin()
    for parameter in model.parameters():
        in_place(parameter)
    with pytest.raises(ValueError, match="changed parameter weight and 1 more"):
        watch.end()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64, torch.complex128])
def test_a_change_is_found_in_parameters_of_any_type_and_layout(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(4, 3, dtype=dtype).t())
    watched = StepParameterGuard([("weight", parameter)], torch.optim.SGD([parameter], lr=0.1))
    watched.begin()
    watched.end()
    watched.begin()
    parameter.data[0, 0] += 1
    with pytest.raises(ValueError, match="changed parameter weight, which only the optimizer may"):
        watched.end()


@pytest.mark.parametrize("first", [True, False])
def test_a_shard_that_is_gathered_in_the_middle_of_a_step_was_not_changed(first: bool) -> None:
    """In `zero3` a layer may be here at the beginning of a step and not at its end, and the other way round."""
    model = nn.Linear(2, 2)
    watched = StepParameterGuard(list(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1))
    model.bias.__class__ = nn.Parameter if first else ShardedParameter
    watched.begin()
    model.bias.__class__ = ShardedParameter if first else nn.Parameter
    watched.end()
    watched.begin()
    data_too(model.weight)
    with pytest.raises(ValueError, match="changed parameter weight, which only the optimizer may"):
        watched.end()
