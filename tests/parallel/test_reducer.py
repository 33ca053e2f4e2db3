"""Every element is averaged exactly once, whatever the sizes, caps and orders; delays change no bit."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ddp import DistributedDataParallel, wrap
from ddp.comm.transports.memory import Transport as Memory
from ddp.parallel.group import Group
from ddp.parallel.reducer import BucketReducer
from tests.parallel.conftest import Together, run_together
from tests.threads import sound

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def parameters(sizes: list[tuple[int, int]]) -> list[tuple[str, nn.Parameter]]:
    return [(f"p{i}", nn.Parameter(torch.zeros(size, dtype=DTYPES[kind]))) for i, (size, kind) in enumerate(sizes)]


def gradient(rank: int, index: int, like: Tensor, turn: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(997 * turn + 31 * index + rank)
    return torch.randn(like.shape, generator=draw).to(like.dtype)


def mean(parts: list[Tensor]) -> Tensor:
    """In the order of ranks, in the precision that the transport promises."""
    count, own = len(parts), parts[0].dtype
    wide = torch.float32 if own is torch.bfloat16 else own if count in (1, 2, 4) else torch.float64
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    return (total / count).to(own)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_element_is_averaged_once(data: st.DataObject) -> None:
    world = data.draw(st.sampled_from([1, 2, 3]))
    sizes = data.draw(st.lists(st.tuples(st.integers(0, 50), st.sampled_from([0, 0, 0, 1, 2])), min_size=1, max_size=9))
    caps = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=2))
    count = len(sizes)
    # On each rank gradients come in an order of its own, and some not at all.
    orders = [data.draw(st.permutations(range(count))) for _ in range(world)]
    orders = [order[: data.draw(st.integers(1, count))] for order in orders]
    style = data.draw(st.sampled_from(["cleared", "zeroed", "kept apart"]))

    def act(group: Group) -> list[list[Tensor | None]]:
        named = parameters(sizes)
        reducer, turns = BucketReducer(group, named, caps), []
        for turn in range(2):
            for _, p in named:
                if style == "cleared" or p.grad is None:
                    p.grad = None
                elif style == "zeroed":
                    p.grad.zero_()
                else:
                    p.grad = torch.zeros_like(p)
            for index in orders[group.rank]:
                p = named[index][1]
                new = gradient(group.rank, index, p, turn)
                p.grad = new if p.grad is None else p.grad.add_(new)
                reducer.touch(index)
            reducer.finish()
            turns.append([None if p.grad is None else p.grad.clone() for _, p in named])
        return turns

    results = sound(run_together(world, act))
    for turn in range(2):
        for index, (_, p) in enumerate(parameters(sizes)):
            came = [gradient(r, index, p, turn) if index in orders[r] else torch.zeros_like(p) for r in range(world)]
            for rank in range(world):
                found = results[rank][turn][index]
                if found is None:
                    assert all(index not in order for order in orders)
                else:
                    assert torch.equal(found, mean([each.detach() for each in came]))


def passes(group: Group, delay_s: float) -> list[Tensor]:
    named = parameters([(300, 0), (7000, 0), (20, 1), (9000, 0), (5, 0)])
    reducer, dawdle, found = BucketReducer(group, named, [4096, 30000]), random.Random(group.rank), []
    carry_out = group._carry_out

    def late(*args: Any) -> None:
        time.sleep(delay_s * dawdle.random())
        carry_out(*args)
        time.sleep(delay_s * dawdle.random())

    if delay_s:
        group._carry_out = late  # type: ignore[method-assign]
    for turn in range(3):
        for index in reversed(range(len(named))):
            parameter = named[index][1]
            parameter.grad = gradient(group.rank, index, parameter, turn)
            reducer.touch(index)
        reducer.finish()
        found += [parameter.grad.clone() for _, parameter in named if parameter.grad is not None]
    return found


def test_delays_around_collectives_change_no_bit(together: Together) -> None:
    quick, slow = together(3, lambda group: passes(group, 0.0)), together(3, lambda group: passes(group, 0.01))
    for one, other in zip(quick, slow, strict=True):
        assert len(one) == 15
        assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(one, other, quick[0], strict=True))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_mean_of_equal_gradients_is_that_gradient(world: int, together: Together) -> None:
    def act(group: Group) -> bool:
        named = parameters([(5000, 0), (20000, 0)])
        reducer = BucketReducer(group, named, [1 << 20])
        for index, (_, parameter) in enumerate(named):
            parameter.grad = gradient(7, index, parameter)
            reducer.touch(index)
        reducer.finish()
        return all(torch.equal(p.grad, gradient(7, i, p)) for i, (_, p) in enumerate(named) if p.grad is not None)

    assert together(world, act) == [True] * world


def test_gradients_live_in_the_buckets(together: Together) -> None:
    def act(group: Group) -> None:
        layers = nn.Linear(4, 4), nn.Linear(4, 4)
        model = nn.Sequential(*layers)
        named = list(model.named_parameters())
        reducer = BucketReducer(group, named, [1 << 20])
        taken: list[int] = []
        storage = reducer._storage
        take_in = storage.take_in
        storage.take_in = lambda index: (taken.append(index), take_in(index))[1]  # type: ignore[method-assign,func-returns-value]
        for index, (_, parameter) in enumerate(named):
            parameter.register_post_accumulate_grad_hook(lambda p, index=index: reducer.touch(index))
        for turn in range(3):
            model(torch.randn(3, 4)).sum().backward()
            reducer.finish()
            assert all(p.grad is view for (_, p), view in zip(named, storage.views, strict=True))
            # Cleared to None, each gradient is copied once, in place of a sum with zeros; zeroed in place, none is.
            assert len(taken) == len(named) * (1 if turn < 2 else 2)
            model.zero_grad(set_to_none=turn == 1)

    together(1, act)


def test_the_memory_of_a_closed_wrapper_is_free(together: Together) -> None:
    """Gradients that lie in it stay as they are; the next wrapper trains as the first did."""

    def act(group: Group) -> None:
        transport, found = group._transport, []
        assert isinstance(transport, Memory)
        for close_twice in (False, True):
            model = nn.Linear(200, 200)
            model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
            wrapped = DistributedDataParallel(model, process_group=group, compression="bfloat16")
            wrapped(torch.full((4, 200), group.rank + 1.0)).mean().backward()
            assert list(transport._folder.glob("region*"))
            wrapped.close()
            if close_twice:
                wrapped.close()
            found.append([torch.as_tensor(p.grad).clone() for p in model.parameters()])
            group.barrier()
            assert not transport._own
            assert all(name.startswith("stage") for name in transport._peers)
            assert not list(transport._folder.glob("region*"))
            group.barrier()
        assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))

    together(2, act)


@pytest.mark.parametrize("kind", ["wrapper", "replicas", "closed under way"])
def test_the_memory_of_what_is_closed_or_collected_is_free(together: Together, kind: str) -> None:
    def act(group: Group) -> None:
        transport, model = group._transport, nn.Linear(200, 200)
        assert isinstance(transport, Memory)
        replicas = kind == "replicas"
        wrapped: Any = wrap([model], group=group) if replicas else DistributedDataParallel(model, process_group=group)
        if kind == "closed under way":
            other = group.empty(1, torch.float32)
            group.start(other)
            wrapped.close()
            group.drain()
            group.release([other])
        del wrapped
        group.barrier()
        assert not transport._own
        assert not list(transport._folder.glob("region*"))
        group.barrier()

    together(2, act)
