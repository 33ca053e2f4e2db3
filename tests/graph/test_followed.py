"""What is changed on a distributed graph between its passes is changed on all replicas."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ddp.graph import FlowBuilder, Graph, GraphError
from tests.graph.oracle import data, distance, equal, made
from tests.graph.several import backward, on, plain, replicas


class Scale(nn.Module):
    alpha: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.alpha


def scaled(device: Any = "cpu") -> Graph:
    return FlowBuilder.from_(nn.Linear(6, 3)).through(Scale()).label("scale").build()


@pytest.mark.parametrize("when", ["before the pass", "before the step"])
@pytest.mark.parametrize("how", ["write", "replace"])
def test_buffers_that_are_written_reach_all_replicas(when: str, how: str) -> None:
    """A value that the caller moves in every step is that of all samples."""
    graphs, (x, y) = [], data(12)
    for size in (1, 2):
        torch.manual_seed(0)
        graph = on(size, scaled(), scaled)
        scale: Any = graph.get_submodule("scale")
        for step in range(3):
            value = torch.tensor(1 / (step + 1))
            if when == "before the step":
                backward(graph, x, y)
            if how == "write":
                scale.alpha.copy_(value)
            else:
                scale.alpha = value
            if when == "before the pass":
                backward(graph, x, y)
            graph.step()
            assert torch.equal(graph.state_dict()["scale.alpha"], value)
        graph.eval()
        graphs.append(graph)
    assert distance(*graphs) < 1e-6
    torch.testing.assert_close(graphs[0](x), graphs[1](x))


def test_statistics_that_are_reset_are_reset_everywhere() -> None:
    """By what a module does to its buffers when the graph's user calls it."""
    graph, (x, y) = on(2), data(12)
    backward(graph, x + 3, y)
    graph.step()
    norm: Any = graph.get_submodule("norm")
    norm.reset_running_stats()
    graph.eval()(x)
    assert all(not one.state_dict()["norm.running_mean"].any() for one in replicas(graph))


@pytest.mark.parametrize("recompute", [False, True])
def test_what_passes_write_themselves_stays_each_replicas_own_until_the_step(recompute: bool) -> None:
    """Two passes of a step: statistics of the second begin from those of the first on the same replica."""

    class Norm(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:
            return checkpoint(super().forward, input, use_reentrant=False) if recompute else super().forward(input)

    def normed(device: Any = "cpu") -> Graph:
        return FlowBuilder.from_(nn.Linear(6, 3)).through(Norm(3)).label("norm").build()

    graph, (x, y) = on(2, normed(), normed), data(12)
    after: list[Tensor] = []
    for _ in range(2):
        F.cross_entropy(graph(x), y).backward()
        after.append(replicas(graph)[1].state_dict()["norm.running_mean"].clone())
    assert not torch.equal(replicas(graph)[0].state_dict()["norm.running_mean"], after[1])
    graph.step()
    assert replicas(graph)[1].state_dict()["norm.num_batches_tracked"] == (4 if recompute else 2)


class Weighed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.passes = 1.0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x)
        return x * self.weight


def test_attributes_that_are_set_are_set_on_all_replicas() -> None:
    """And only these: what passes set is each one's own."""

    def weighed(device: Any = "cpu") -> Graph:
        flow = FlowBuilder.from_(nn.Linear(6, 3)).through(nn.Dropout(0.5)).label("drop")
        return flow.through(Weighed()).label("weighed").build()

    graph, x = weighed(), data(13)[0]
    whole = graph.get_submodule("linear_0")(x)
    on(3, graph, weighed)
    graph(x)
    drop: Any = graph.get_submodule("drop")
    weighed_: Any = graph.get_submodule("weighed")
    drop.p, weighed_.weight = 0.0, 3.0
    torch.testing.assert_close(graph(x), 3 * whole)
    everybody: list[Any] = [one.get_submodule("weighed") for one in replicas(graph)]
    assert [one.passes for one in everybody] == [10, 8, 8]


def test_modes_and_frozen_layers_are_those_of_the_graph() -> None:
    graph = on(2)
    graph.get_submodule("norm").eval()
    graph.get_parameter("first.weight").requires_grad_(False)
    before = copy.deepcopy(graph)
    backward(graph, *data(12))
    graph.step()
    assert torch.equal(graph.get_parameter("first.weight"), before.get_parameter("first.weight"))
    assert torch.equal(graph.get_buffer("norm.running_mean"), before.get_buffer("norm.running_mean"))
    assert equal(graph, replicas(graph)[1])
    frozen = made()
    frozen.get_parameter("first.weight").requires_grad_(False)
    on(2, frozen)
    frozen.get_parameter("first.weight").requires_grad_(True)
    with pytest.raises(GraphError, match="unfreeze it before"):
        (backward(frozen, *data(12)), frozen.step())


def test_loading_reaches_all_replicas_and_copies_are_not_distributed() -> None:
    graph, other = on(2), made(5)
    graph.load_state_dict(other.state_dict())
    assert equal(other, graph)
    assert equal(graph, replicas(graph)[1])
    assert not copy.deepcopy(graph).is_distributed()


def test_what_is_written_into_parameters_after_a_step_reaches_all_replicas() -> None:
    """As loops do that clip weights, or evaluate with averaged ones and go back."""
    graph, alone = on(2, made(norm=False), plain), on(1, made(norm=False), plain)
    for model in (graph, alone):
        for seed in range(3):
            backward(model, *data(12, seed))
            model.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.2, 0.2)
    assert distance(graph, alone) < 1e-6
    kept = [parameter.detach().clone() for parameter in graph.parameters()]
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.zero_()
        assert torch.equal(graph(data(8)[0]), torch.zeros(8, 3))
        for parameter, value in zip(graph.parameters(), kept, strict=True):
            parameter.copy_(value)
    backward(graph, *data(12, 4))
    graph.step()
    assert equal(graph, replicas(graph)[1])


def test_a_parameter_that_gets_other_memory_is_told() -> None:
    """Before, the other replicas went on with what they had."""
    graph = on(2, made(norm=False), plain)
    backward(graph, *data(12))
    graph.step()
    for parameter in graph.parameters():
        parameter.data = torch.zeros_like(parameter)
    with pytest.raises(ValueError, match=r"was replaced during training: change it in place \(copy_\)"):
        backward(graph, *data(12))


@pytest.mark.parametrize("how", ["another", "one more", "a parameter"])
def test_a_module_that_comes_after_the_replicas_is_an_error(how: str) -> None:
    """The first replica had another head than the others, and answers were of both."""
    graph = on(2, plain(), plain)
    x, y = data(8)
    backward(graph, x, y)
    graph.step()
    name, layer = [(name, part) for name, part in graph.named_children() if isinstance(part, nn.Linear)][-1]
    if how == "another":
        setattr(graph, name, nn.Linear(layer.in_features, layer.out_features))
    elif how == "one more":
        layer.add_module("more", nn.Linear(1, 1))
    else:
        layer.register_parameter("more", nn.Parameter(torch.ones(1)))
    graph.eval()
    with pytest.raises(
        GraphError, match="after it was distributed, and the other replicas do not have it: do that before"
    ):
        graph(x)
