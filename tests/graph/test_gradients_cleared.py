"""Passes whose gradients the caller clears, never asks for or gives up are no part of a step, on any replica."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ddp.graph import GraphError
from tests.graph.oracle import data, distance, equal, made
from tests.graph.several import backward, on, plain, replicas


def test_gradients_may_be_cleared_between_a_pass_and_its_backward() -> None:
    """The usual order of PyTorch's loops; the pass was once forgotten, its statistics and its times with it."""
    graph, usual = on(2), on(2)
    for seed in range(4):
        x, y = data(12, seed)
        loss = F.cross_entropy(graph(x), y)
        graph.zero_grad()
        loss.backward()
        backward(usual, x, y)
        graph.step()
        usual.step()
    assert equal(graph, usual)
    assert graph.get_buffer("norm.running_mean").any()
    assert min(graph.throughput()) > 0


def test_a_pass_that_is_never_taken_back_is_no_part_of_a_step() -> None:
    """As an evaluation without `torch.no_grad`: weights may be written behind it, and it counts for nothing."""
    graph, alone = on(2, made(norm=False), plain), on(1, made(norm=False), plain)
    for model in (graph, alone):
        for seed in range(3):
            model(data(40, seed)[0])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.2, 0.2)
            backward(model, *data(12, seed))
            model.step()
    assert distance(graph, alone) < 1e-6
    assert equal(graph, replicas(graph)[1])


def test_gradients_that_the_caller_cleared_are_cleared() -> None:
    graph, alone = on(2, made(norm=False), plain), on(1, made(norm=False), plain)
    for model in (graph, alone):
        for one in replicas(model) if model is graph else [model]:
            one.zero_grad(set_to_none=True)
        backward(model, *data(12))
        model.step()
    assert distance(graph, alone) < 1e-6


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_pass_that_is_given_up_is_cleared_on_all_replicas(set_to_none: bool) -> None:
    """As the loop that skips a loss which is not finite does."""
    one, other = on(2), on(2)
    (x, y), (bad, worse) = data(20), data(9)
    backward(one, bad, worse)
    one.zero_grad(set_to_none)
    with pytest.raises(GraphError, match="step without a gradient"):
        one.step()
    for graph in (one, other):
        backward(graph, x, y)
        graph.step()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
