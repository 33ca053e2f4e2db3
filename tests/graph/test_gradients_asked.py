"""Gradients of a distributed graph that are asked for in other ways than by one backward pass of a real loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ddp.graph import FlowBuilder, Graph
from tests.graph.oracle import data, distance, made
from tests.graph.several import backward, on, plain, sgd


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x)


def spectral(device: Any = "cpu") -> Graph:
    return FlowBuilder.from_(nn.Linear(6, 6)).fork(Spectrum(), tag="spectrum").through(nn.Linear(6, 3)).build()


def test_gradients_come_from_complex_values() -> None:
    """A loss on a complex tag trains the replicas as it trains one device."""
    x, graphs = data(12)[0], []
    for size in (1, 2):
        torch.manual_seed(0)
        graph = on(size, spectral(), spectral)
        before = graph.state_dict()["linear_0.weight"].clone()
        (graph(x).sum() * 0 + graph.tagged("spectrum").abs().mean()).backward()
        graph.step()
        assert not torch.equal(graph.state_dict()["linear_0.weight"], before)
        graphs.append(graph)
    assert distance(*graphs) < 1e-6


def test_a_step_clears_what_the_optimizer_does_not_train() -> None:
    """Another optimizer that has them steps with the gradients of its own time, on any number of devices."""
    graphs, (x, y) = [], data(12)
    for size in (1, 2):
        graph = on(size, made(norm=False), plain, optimizer=lambda parameters: sgd(parameters[2:]))
        for _ in range(3):
            backward(graph, x, y)
            graph.step()
        assert not any(parameter.grad is not None and parameter.grad.any() for parameter in graph.parameters())
        graph.set_optimizer(sgd)
        backward(graph, x, y)
        graph.step()
        graphs.append(graph)
    assert distance(*graphs) < 1e-6
