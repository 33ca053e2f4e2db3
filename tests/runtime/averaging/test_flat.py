"""The flat state: complex buffers lie in it as pairs of real numbers, and are averaged as such."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ddp.replica.memory.flat import FlatState
from ddp.replica.task import Task
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("in_process")


class Turning(nn.Module):
    """Follows its inputs with a complex number, or with its two parts."""

    turn: Tensor

    def __init__(self, paired: bool) -> None:
        super().__init__()
        self.odd = nn.Linear(6, 1)
        self.register_buffer("turn", torch.zeros(2) if paired else torch.zeros((), dtype=torch.complex64))

    def forward(self, inputs: Tensor) -> Tensor:
        seen = torch.stack([inputs.detach().mean(), inputs.detach().std(correction=0)]) * self.training
        self.turn += (seen if self.turn.dim() else torch.view_as_complex(seen)) * 0.125
        return torch.cat([self.odd(inputs), -self.odd(inputs)], 1)


def task(paired: bool) -> Task:
    return replace(toy.task(), model=partial(Turning, paired))


@pytest.mark.parametrize(("policy", "backend"), [("sync", "nccl"), ("cadence", "nccl"), ("async", "cpu")])
def test_a_complex_buffer_is_averaged_as_its_two_parts(play: Play, policy: str, backend: str) -> None:
    options = {} if policy != "cadence" else {"anchor": 2, "max_anchor": 2}
    played = play(policy, backend, partial(task, False), options=options)
    assert len(played.digests) == 1
    turn = torch.view_as_real(played.state()["turn"])
    assert turn.ne(0).all()
    if policy == "sync":  # the others average when they do
        assert torch.equal(turn, play(policy, backend, partial(task, True), options=options).state()["turn"])


def test_complex_buffers_keep_their_values_and_lie_in_the_flat_state() -> None:
    model = nn.Linear(3, 1, bias=False)
    for name, value in (("a", torch.rand(3, 2)), ("b", torch.zeros(0)), ("c", torch.rand(()).double())):
        model.register_buffer(name, torch.complex(value, value + 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = FlatState(model)
    assert {str(flat.dtype) for flat in state.tensors} == {"torch.float32", "torch.float64"}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    state.tensors[0].mul_(2)
    assert torch.equal(model.a, before["a"] * 2)
    model.a = model.a * 1j
    state.gather()
    assert torch.equal(torch.view_as_real(before["a"] * 2j).flatten(), state.tensors[0][-12:])


def test_parameters_that_share_memory_are_refused_unless_they_are_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    FlatState(model)
    model.register_buffer("start", model[0].bias.data)
    with pytest.raises(ValueError, match=r"0\.bias and start share memory without being one parameter.*assigning"):
        FlatState(model)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data.T
    with pytest.raises(ValueError, match=r"0\.weight and 1\.weight share memory.*or give each its own \(clone\)"):
        FlatState(model)
    model[1].weight.data = model[1].weight.data.clone()
    for name, part in zip(("left", "right"), torch.rand(2, 4).chunk(2, dim=1), strict=True):
        model.register_parameter(name, nn.Parameter(part))  # one storage, no element of both
    FlatState(model)
    model.register_buffer("rest", model[1].bias.data[1:])
    with pytest.raises(ValueError, match=r"1\.bias and rest share memory"):
        FlatState(model)


def test_a_buffer_that_was_given_other_memory_is_taken_back() -> None:
    model = nn.BatchNorm1d(4)
    state = FlatState(model)
    model.running_mean.data = torch.arange(4.0)
    model.running_var = torch.arange(4.0, 8.0, requires_grad=True)
    state.gather()
    buffers = [section.values for section in state.sections if section.kind == "buffers"]
    assert buffers[0].tolist() == list(range(8))
    buffers[0].zero_()
    assert not any(buffer.any() for buffer in model.buffers())


@pytest.mark.parametrize(
    ("became", "told"),
    [
        (torch.zeros(()), r"BatchNorm1d.running_var was float32 \[4\] and has become float32 \[\] in training"),
        (torch.zeros(4, dtype=torch.complex64), r"has become complex64 \[4\] in training.*keep its size and type"),
    ],
)
def test_a_buffer_of_another_size_or_type_is_an_error_that_names_it(became: Tensor, told: str) -> None:
    model = nn.BatchNorm1d(4)
    state = FlatState(model)
    model.running_var = became
    with pytest.raises(ValueError, match=told):
        state.gather()


class Growing(nn.Module):
    """Makes its cache anew where it is too small."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.net = toy.net(True)
        self.register_buffer("cache", 1 + torch.arange(start) / 4, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > len(self.cache):
            self.cache = 1 + torch.arange(len(inputs)) / 4
        return torch.as_tensor(self.net(inputs) * self.cache[: len(inputs), None].clamp(max=2))


@pytest.mark.parametrize("backend", ["nccl", "zero3", *slow("zero1", "torch_ddp"), "torch_fsdp"])
def test_a_buffer_that_nobody_saves_may_grow(play: Play, backend: str) -> None:
    """The run failed, even on one rank. Now the buffer is each rank's own."""
    for fields in ({"world_size": 1}, {}):
        large, small = (
            play(
                "sync", backend, partial(replace, toy.task(), model=partial(Growing, start)), epochs=1, **fields
            ).state()
            for start in (128, 2)
        )
        assert all(torch.equal(value, small[name]) for name, value in large.items())


def test_a_buffer_that_nobody_saves_may_go() -> None:
    model = Growing(2)
    state = FlatState(model)
    model.cache = None
    state.gather()
    model.cache = torch.zeros(2, 2)
    state.gather()
    assert model.cache.shape == (2, 2)


def test_a_buffer_that_is_made_later_is_an_error_unless_nobody_saves_it() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False))
    state = FlatState(model)
    model.register_buffer("table", torch.zeros(4), persistent=False)
    state.check_added(model)
    model[0].running_mean = torch.zeros(4)
    with pytest.raises(
        ValueError, match=r"buffer 0\.running_mean was made after training began.*where the model is made"
    ):
        state.check_added(model)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)),
            r"1\.weight has no shape yet: pass a batch through the model",
        ),
        (nn.Sequential(nn.LazyBatchNorm1d(affine=False)), r"0\.running_mean has no shape yet"),
    ],
)
def test_what_has_no_shape_yet_is_refused(model: nn.Module, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        FlatState(model)


def test_a_sparse_buffer_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="graph is sparse, and ranks average dense ones: register its indices"):
        FlatState(model)
