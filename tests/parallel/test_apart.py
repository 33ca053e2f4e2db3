"""Replicas that come apart do not do so unsaid; and who goes without a batch keeps step with the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import DistributedDataParallel
from ddp.parallel.group import Group
from tests.parallel.conftest import Together, run_together
from tests.parallel.wrapped import batch, loss, net, same

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, foreach=False),
    "foreach": partial(torch.optim.SGD, lr=0.1, foreach=True),
    "fused": partial(torch.optim.AdamW, lr=0.1, fused=True),
}


def alone(wrapped: Any, group: Group, step: int = 0) -> None:
    """A gradient that only this rank has: the forward pass decides."""
    with wrapped.no_sync():
        found = loss(wrapped, batch(group.rank, step))
    found.backward()


def forget_to_send(wrapped: Any, group: Group, step: int = 0) -> None:
    with wrapped.no_sync():
        loss(wrapped, batch(group.rank, step)).backward()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("local", [alone, forget_to_send])
@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_a_step_on_gradients_of_one_rank_is_an_error_in_the_next_pass_on_all(
    kind: str, local: Callable[..., None], ranks: tuple[int, ...]
) -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group)
        optimizer = OPTIMIZERS[kind](wrapped.parameters())
        if group.rank in ranks:
            local(wrapped, group)
            optimizer.step()
        optimizer.zero_grad()
        loss(wrapped, batch(group.rank, 1)).backward()

    for result in run_together(2, act):
        with pytest.raises(ValueError, match=r"come apart: parameter 0\.weight is not .* no_sync.* sync_parameters"):
            raise result


def test_without_overlap_a_step_before_sync_gradients_is_found_too() -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group, overlap=False)
        optimizer = OPTIMIZERS["sgd"](wrapped.parameters())
        for step in range(2):
            optimizer.zero_grad()
            loss(wrapped, batch(group.rank, step)).backward()
            if step:
                wrapped.sync_gradients()
            optimizer.step()

    for result in run_together(2, act):
        with pytest.raises(ValueError, match="replicas have come apart"):
            raise result


@pytest.mark.parametrize("meet", ["sync_parameters", "by hand"])
def test_replicas_that_were_brought_together_again_go_on(meet: str, together: Together) -> None:
    """Local steps with an average of one's own."""

    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(), process_group=group)
        optimizer = OPTIMIZERS["sgd"](wrapped.parameters())
        for step in range(3):
            optimizer.zero_grad()
            forget_to_send(wrapped, group, step)
            optimizer.step()
        optimizer.zero_grad()
        if meet == "sync_parameters":
            wrapped.sync_parameters()
        else:
            for parameter in wrapped.parameters():
                group.all_reduce(parameter.detach(), "mean")
        loss(wrapped, batch(group.rank, 4)).backward()
        optimizer.step()
        return [parameter.detach().clone() for parameter in wrapped.parameters()]

    assert same(*together(2, act))


def test_gradients_that_are_cleared_or_sent_before_the_step_are_no_reason(together: Together) -> None:
    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(), process_group=group)
        optimizer = OPTIMIZERS["sgd"](wrapped.parameters())
        for step in range(4):
            alone(wrapped, group, step)
            if step % 2:
                optimizer.zero_grad()
                loss(wrapped, batch(group.rank, 9)).backward()
            else:
                wrapped.sync_gradients()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in wrapped.parameters()]

    assert same(*together(2, act))


def test_a_rank_with_fewer_batches_keeps_step_also_in_buffers(together: Together) -> None:
    """Rank 1 has no second batch in the first step, and none at all in the second."""

    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(norm=True), process_group=group)
        for step in range(3):
            wrapped.zero_grad()
            if group.rank and step == 1:
                wrapped.sync_gradients(samples=0)
                continue
            with wrapped.no_sync():
                loss(wrapped, batch(group.rank, 2 * step)).backward()
            if group.rank and step == 0:
                wrapped.sync_gradients(samples=6)
            else:
                wrapped.set_samples(12)
                loss(wrapped, batch(group.rank, 2 * step + 1)).backward()
        with torch.no_grad():
            wrapped.eval()(batch(0, 9))
        return [
            *(parameter.grad.clone() for parameter in wrapped.parameters() if parameter.grad is not None),
            *wrapped.buffers(),
        ]

    ours, others = together(2, act)
    assert len(ours) == 9
    assert same(ours, others)


def test_a_gradient_is_a_place_in_a_bucket(together: Together) -> None:
    """Who holds on to it sees the next one; torch's with `gradient_as_bucket_view=False` makes them anew."""

    def act(group: Group) -> bool:
        model = nn.Linear(5, 2)
        wrapped = DistributedDataParallel(model, process_group=group)
        held = []
        for step in range(2):
            wrapped.zero_grad()
            loss(wrapped, batch(group.rank, step)).backward()
            held.append(model.weight.grad)
        return held[0] is held[1]

    assert together(2, act) == [True, True]
