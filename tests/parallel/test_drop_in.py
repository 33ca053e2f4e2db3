"""Loops written for torch's class do here what they did there, or are told what to do instead; nothing goes wrong unsaid."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ddp
from ddp import DistributedDataParallel
from ddp.parallel.group import Group
from tests.parallel.conftest import Together, run_together
from tests.parallel.wrapped import build, loss, net, same, seeding


class Masked(nn.Module):
    """Uses a buffer in what autograd saves."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 2.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.linear(inputs) * self.mask)


@pytest.mark.parametrize("make", [Masked, lambda: build(norm=True)])
def test_two_forward_passes_before_one_backward(make: Any, together: Together) -> None:
    """As critics of GANs and siamese networks do; buffers are brought into line before each."""

    def act(group: Group) -> list[Tensor]:
        with seeding:
            torch.manual_seed(1)
            model = make()
        wrapped = DistributedDataParallel(model, process_group=group)
        draw = torch.Generator().manual_seed(group.rank)
        first, second = (wrapped(torch.randn(4, 5, generator=draw)) for _ in range(2))
        (first.mean() + second.square().mean()).backward()
        return [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]

    ours, others = together(2, act)
    assert len(ours) >= 2
    assert same(ours, others)


def test_a_fused_optimizer_moves_channels_last_weights_by_their_own_gradients(together: Together) -> None:
    def trained(wrap: Any) -> list[Tensor]:
        with seeding:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        model.to(memory_format=torch.channels_last)
        wrapped = wrap(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        for step in range(3):
            optimizer.zero_grad(set_to_none=step == 1)
            inputs = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(step))
            loss(wrapped, inputs.to(memory_format=torch.channels_last)).backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    truth = trained(lambda model: model)
    for found in together(2, lambda group: trained(lambda model: DistributedDataParallel(model, process_group=group))):
        assert same(found, truth), "equal batches: the average is each rank's own"


def test_another_memory_format_on_one_rank_or_later_is_refused() -> None:
    def act(group: Group) -> None:
        model = nn.Conv2d(3, 4, 3)
        DistributedDataParallel(
            model.to(memory_format=torch.channels_last) if group.rank else model, process_group=group
        )

    for result in run_together(2, act):
        with pytest.raises(
            ValueError, match=r"parameter weight is float32 \[4, 3, 3, 3\] in strides \[27, 1, 9, 3\] on"
        ):
            raise result

    def later(group: Group) -> None:
        model = nn.Conv2d(3, 4, 3)
        wrapped = DistributedDataParallel(model, process_group=group)
        model.to(memory_format=torch.channels_last)
        wrapped(torch.ones(1, 3, 3, 3))

    for result in run_together(2, later):
        with pytest.raises(ValueError, match="weight was replaced or changed in type or memory format after"):
            raise result


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("cap", [None, 0.0002])
def test_gradients_whose_memory_was_replaced_are_averaged_all_the_same(
    clear: bool, cap: float | None, together: Together
) -> None:
    """`p.grad.data = ...` leaves the tensor and takes its memory."""

    def act(group: Group) -> list[list[float]]:
        model = nn.Sequential(nn.Linear(2, 60, bias=False), nn.Linear(60, 1, bias=False))
        nn.init.ones_(model[0].weight)
        nn.init.ones_(model[1].weight)
        wrapped = DistributedDataParallel(model, process_group=group, bucket_cap_mb=cap)
        seen = []
        for step in range(4):
            wrapped.zero_grad(set_to_none=clear)
            wrapped(torch.ones(1, 2) * (1 + group.rank)).sum().backward()
            seen.append([float(p.grad.mean()) for p in model.parameters() if p.grad is not None])
            for parameter in list(model.parameters())[step % 2 :]:
                assert parameter.grad is not None
                parameter.grad.data = parameter.grad.data * 2.0
        return seen

    assert together(2, act) == [[[1.5, 3.0]] * 4] * 2


def test_what_is_unfrozen_after_wrap_is_refused() -> None:
    def act(group: Group) -> None:
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        model[0].requires_grad_(False)
        wrapped = ddp.wrap([model], ["cpu"], group=group)
        group.barrier()
        model[0].requires_grad_(True)
        model(torch.ones(1, 1)).sum().backward()
        wrapped.all_reduce_gradients()

    for result in run_together(2, act):
        with pytest.raises(ValueError, match=r"parameter 0\.weight was unfrozen after the model was wrapped"):
            raise result


class Segments(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(3))
        for layer in self.layers:
            nn.init.ones_(layer.weight)
        self.reentrant = reentrant

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.layers[0](inputs)
        for layer in list(self.layers)[1:]:
            hidden = checkpoint(layer, hidden, use_reentrant=self.reentrant)
        return hidden


def segments(group: Group, reentrant: bool, hold: bool = False) -> list[float]:
    wrapped = DistributedDataParallel(Segments(reentrant), process_group=group)
    samples = 1 + 2 * group.rank
    inputs = torch.full((1, 1), 1.0 + 2 * group.rank)
    if hold:
        with wrapped.no_sync():
            wrapped(inputs).sum().backward()
        wrapped.sync_gradients(samples)
    else:
        wrapped.set_samples(samples)
        wrapped(inputs).sum().backward()
    return [float(p.grad) for p in wrapped.parameters() if p.grad is not None]


def test_samples_weigh_all_of_a_checkpointed_model_or_none(together: Together) -> None:
    """Reentrant segments are backward passes of their own."""
    assert together(2, lambda group: segments(group, reentrant=False)) == [[2.5] * 3] * 2
    assert together(2, lambda group: segments(group, reentrant=True, hold=True)) == [[2.5] * 3] * 2
    for result in run_together(2, lambda group: segments(group, reentrant=True)):
        with pytest.raises(ValueError, match="a second backward pass after one that samples were said for"):
            raise result


def test_two_losses_with_samples_for_each(together: Together) -> None:
    def act(group: Group) -> float:
        model = nn.Linear(1, 1, bias=False)
        wrapped = DistributedDataParallel(model, process_group=group)
        outs = [wrapped(torch.full((1, 1), 1.0 + 2 * group.rank)) for _ in range(2)]
        for out in outs:
            model.zero_grad()
            wrapped.set_samples(1 + 2 * group.rank)
            out.sum().backward()
        assert model.weight.grad is not None
        return float(model.weight.grad)

    assert together(2, act) == [2.5, 2.5]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_of_gradients_are_averaged(together: Together) -> None:
    """Their graph is this rank's alone, and not kept, as the gradient lies in a bucket."""

    def act(group: Group) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 2.0)
        wrapped = DistributedDataParallel(model, process_group=group)
        (wrapped(torch.full((1, 1), 1.0 + group.rank)) ** 3).sum().backward(create_graph=True)
        assert model.weight.grad is not None
        return float(model.weight.grad)

    assert together(2, act) == [(3 * 4 * 1 + 3 * 4 * 8) / 2] * 2


class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise LookupError("on purpose")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.a * inputs + self.b * inputs


def test_a_pass_that_broke_off_is_no_reason_not_to_average_the_next(together: Together) -> None:
    def act(group: Group) -> list[float]:
        model = Two()
        wrapped = DistributedDataParallel(model, process_group=group)
        inputs = torch.full((1,), 1.0 + group.rank)
        out = wrapped(inputs)
        with pytest.raises(LookupError):
            (Boom.apply(model.a * 1.0) + model.b * 1.0 * inputs).sum().backward()
        wrapped.zero_grad()
        out.sum().backward()
        return [float(p.grad) for p in model.parameters() if p.grad is not None]

    assert together(2, act) == [[1.5, 1.5]] * 2


def test_without_overlap_buffers_are_shared_with_the_gradients(together: Together) -> None:
    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(norm=True), process_group=group, overlap=False)
        for step in range(3):
            loss(wrapped, torch.randn(6, 5, generator=torch.Generator().manual_seed(10 * step + group.rank))).backward()
            wrapped.sync_gradients()
        return [buffer.clone() for buffer in wrapped.buffers()]

    assert same(*together(2, act))


def test_buffers_of_any_width_travel_together(together: Together) -> None:
    def act(group: Group) -> list[Tensor]:
        model = nn.Linear(1, 1)
        model.register_buffer("count", torch.tensor(group.rank + 3))
        model.register_buffer("wide", torch.tensor([1 + 2j, 3j], dtype=torch.complex128) * (1 + group.rank))
        model.register_buffer("flag", torch.tensor([not group.rank]))
        return [buffer.clone() for buffer in DistributedDataParallel(model, process_group=group).buffers()]

    ours, others = together(2, act)
    assert same(ours, others)
    assert ours[0] == 3


def test_a_forked_copy_does_not_leave_for_its_parent(together: Together) -> None:
    def act(group: Group) -> float:
        process = group._process
        group._process = process + 1  # as a child of os.fork() finds it
        group.close()
        group._process = process
        one = torch.ones(1)
        group.all_reduce(one)
        return float(one)

    assert together(2, act) == [2.0, 2.0]
