"""`DistributedDataParallel` against a replay in one process, bit for bit; and everything that it promises besides."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import DistributedDataParallel
from ddp.parallel.group import Group
from tests.parallel.conftest import Together
from tests.parallel.test_reducer import mean
from tests.parallel.wrapped import STEPS, batch, loss, net, same, train, values


def replay(world: int, steps: int = STEPS) -> list[Tensor]:
    """What one process makes of all ranks' batches: gradient by gradient, added up in the order of ranks."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        found = []
        for rank in range(world):
            model.zero_grad()
            loss(model, batch(rank, step)).backward()
            found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for parameter, parts in zip(model.parameters(), zip(*found, strict=True), strict=True):
            parameter.grad = mean(list(parts))
        optimizer.step()
    return values(model)


@pytest.mark.parametrize(
    "settings", [{}, {"bucket_cap_mb": 0.0002}, {"overlap": False}, {"clear": "between"}, {"clear": "zero"}]
)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_training_is_that_of_a_replay_in_one_process(world: int, settings: dict[str, Any], together: Together) -> None:
    """Ranks start from different parameters: those of rank 0 count."""
    torch.set_num_threads(1)
    truth = replay(world)
    assert all(same(found, truth) for found in together(world, lambda group: train(group, **settings)))


def test_a_sum_is_not_divided(together: Together) -> None:
    def act(group: Group, average: bool) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(), process_group=group, average=average)
        loss(wrapped, batch(group.rank, 0)).backward()
        return [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]

    means, sums = together(2, lambda group: act(group, True)), together(2, lambda group: act(group, False))
    assert same([2 * each for each in means[0]], sums[1])


def test_gradients_add_up_inside_no_sync(together: Together) -> None:
    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(), process_group=group)
        with wrapped.no_sync():
            loss(wrapped, batch(group.rank, 0)).backward()
            own = [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]
        loss(wrapped, batch(group.rank, 1)).backward()
        return own + [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]

    def alone(rank: int) -> list[Tensor]:
        model = net()
        for step in range(2):
            loss(model, batch(rank, step)).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    one, other = together(2, act)
    assert not same(one[:4], other[:4])
    assert same(one[4:], other[4:])
    assert same(one[4:], [mean(list(parts)) for parts in zip(alone(0), alone(1), strict=True)])


class Parts(nn.Module):
    """Uses the parts that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(5, 2) for _ in range(3))

    def forward(self, inputs: Tensor, used: list[int]) -> Tensor:
        return torch.stack([self.parts[index](inputs) for index in used]).sum()


@pytest.mark.parametrize("cap", [None, 0.00001])
def test_unused_parameters(cap: float | None, together: Together) -> None:
    """Part 0 is used by both ranks, part 1 by rank 1, part 2 by nobody, and in the second step by all."""

    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(Parts(), process_group=group, bucket_cap_mb=cap)
        grads = [[p.grad for p in part.parameters()] for part in wrapped.module.parts]
        for turn in range(3):
            wrapped.zero_grad()
            used = [0, 1, 2] if turn == 1 else [0, 1] if group.rank else [0]
            wrapped(torch.ones(1, 5), used).backward()
            grads = [[p.grad for p in part.parameters()] for part in wrapped.module.parts]
            halves = [1.0, 0.5 if turn != 1 else 1.0]
            assert all(
                bool((g == half).all())
                for part, half in zip(grads, halves, strict=False)
                for g in part
                if g is not None
            )
            assert [[g is None for g in part] for part in grads] == [[False] * 2] * 2 + [[turn != 1] * 2]

    together(2, act)


@pytest.mark.parametrize("sizes", [(6, 2), (6, 0), (1, 5)])
@pytest.mark.parametrize("overlap", [True, False])
def test_uneven_batches_average_over_samples(sizes: tuple[int, int], overlap: bool, together: Together) -> None:
    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(), process_group=group, overlap=overlap, bucket_cap_mb=0.0002)
        own = sizes[group.rank]
        if own and overlap:
            wrapped.set_samples(own)
            loss(wrapped, batch(group.rank, 0, own)).backward()
        elif own:
            loss(wrapped, batch(group.rank, 0, own)).backward()
            wrapped.sync_gradients(samples=own)
        else:
            wrapped.sync_gradients(samples=0)
        return [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]

    model = net()
    loss(model, torch.cat([batch(rank, 0, size) for rank, size in enumerate(sizes)])).backward()
    found = together(2, act)
    assert same(*found)
    for own, parameter in zip(found[0], model.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad)


def test_bfloat16_on_the_wire(together: Together) -> None:
    found = together(2, lambda group: train(group, compression="bfloat16"))
    truth = replay(2)
    assert same(*found)
    assert not same(found[0], truth)
    for own, exact in zip(found[0], truth, strict=True):
        torch.testing.assert_close(own, exact, rtol=0.05, atol=0.01)


def test_buffers_are_those_of_rank_0(together: Together) -> None:
    def act(group: Group, broadcast: bool) -> list[Tensor]:
        return train(group, model=net(norm=True), broadcast_buffers=broadcast)[4:7]

    shared, own = together(2, lambda group: act(group, True)), together(2, lambda group: act(group, False))
    # What the last step changed in a rank is its own; the steps before are rank 0's.
    assert same(shared[0], own[0])
    assert not same(shared[1], own[1])
    assert not same(own[0], own[1])


def test_gradients_of_a_second_synchronisation_are_left_alone(together: Together) -> None:
    def act(group: Group) -> None:
        wrapped = DistributedDataParallel(net(), process_group=group, average=False)
        loss(wrapped, batch(group.rank, 0)).backward()
        before = [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]
        wrapped.sync_gradients()
        assert same(before, [p.grad for p in wrapped.parameters() if p.grad is not None])

    together(2, act)


@pytest.mark.parametrize("cap", [None, 0.0002])
def test_sums_of_several_passes_add_up(cap: float | None, together: Together) -> None:
    """Without clearing: what was summed over the ranks counts once, also of a part that the second pass does not use."""

    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(Parts(), process_group=group, average=False, bucket_cap_mb=cap)
        inputs = torch.full((1, 5), 1.0 + group.rank)
        wrapped(inputs, [0, 1]).backward()
        wrapped(inputs, [0, 2] if group.rank else [0]).backward()
        with wrapped.no_sync():
            wrapped(inputs, [0]).backward()
        wrapped(inputs, [0]).backward()
        return [p.grad[0, 0].clone() for p in (part.weight for part in wrapped.module.parts)]

    assert [[float(value) for value in found] for found in together(2, act)] == [[12.0, 3.0, 2.0]] * 2


def test_samples_that_were_said_hold_though_the_pass_before_broke_off(together: Together) -> None:
    def act(group: Group) -> list[Tensor]:
        wrapped = DistributedDataParallel(net(), process_group=group)

        def fail(gradient: Tensor) -> Tensor:
            raise LookupError

        found = wrapped(batch(group.rank, 0))
        handle = wrapped.module[0].weight.register_hook(fail)
        with pytest.raises(LookupError):
            found.square().mean().backward()
        handle.remove()
        wrapped.zero_grad()
        wrapped.set_samples(1 + 2 * group.rank)
        loss(wrapped, batch(group.rank, 1)).backward()
        return [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]

    own = [net(), net()]
    for rank, model in enumerate(own):
        loss(model, batch(rank, 1)).backward()
    for found in together(2, act):
        for mine, one, three in zip(found, own[0].parameters(), own[1].parameters(), strict=True):
            assert one.grad is not None
            assert three.grad is not None
            torch.testing.assert_close(mine, 0.25 * one.grad + 0.75 * three.grad)


def test_a_sparse_gradient_becomes_a_dense_one(together: Together) -> None:
    def act(group: Group) -> Tensor:
        wrapped = DistributedDataParallel(nn.Embedding(4, 2, sparse=True), process_group=group)
        wrapped(torch.tensor([group.rank, 3])).sum().backward()
        gradient = wrapped.module.weight.grad
        assert gradient is not None
        return gradient.clone()

    assert [found.tolist() for found in together(2, act)] == [[[0.5] * 2, [0.5] * 2, [0.0] * 2, [1.0] * 2]] * 2


@pytest.mark.parametrize("compression", [None, "bfloat16"])
def test_samples_do_not_overflow_half_precision(compression: str | None, together: Together) -> None:
    """256 samples with a gradient of 512 each are more than float16 can say."""

    def act(group: Group) -> float:
        model = nn.Linear(1, 1, bias=False).half()
        wrapped = DistributedDataParallel(model, process_group=group, compression=compression)
        wrapped.set_samples(256)
        (wrapped(torch.ones(1, 1).half()) * 512).sum().backward()
        assert model.weight.grad is not None
        return float(model.weight.grad)

    assert together(2, act) == [512.0] * 2


def test_a_wrapped_model_is_pickled_and_copied_as_any_other(together: Together) -> None:
    def act(group: Group) -> None:
        model = net()
        wrapped = DistributedDataParallel(model, process_group=group)
        again = pickle.loads(pickle.dumps(wrapped.module))
        assert same(values(again), values(model))
        for other in (again, copy.deepcopy(model)):
            DistributedDataParallel(other, process_group=group).close()
        with pytest.raises(TypeError, match=r"take its \.module"):
            pickle.dumps(wrapped)

    together(1, act)


def test_wrappers_may_share_what_is_not_trained(together: Together) -> None:
    def act(group: Group) -> None:
        encoder = nn.Linear(5, 5).requires_grad_(False)
        kept = [DistributedDataParallel(nn.Sequential(encoder, net()), process_group=group) for _ in range(2)]
        with pytest.raises(ValueError, match="wrapped already"):
            DistributedDataParallel(kept[0].module[1], process_group=group)

    together(1, act)
