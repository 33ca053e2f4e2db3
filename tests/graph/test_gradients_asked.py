"""Gradients of a distributed graph that are asked for in other ways than by one backward pass of a real loss."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ddp.graph import FlowBuilder, Graph, GraphError, parallel
from ddp.graph.worker_threads import ReplicaFailed, WorkerThreads
from tests.graph.oracle import data, distance, equal, made
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


@pytest.mark.parametrize("by", ["grad", "backward"])
def test_gradients_of_inputs_leave_the_parameters_alone(by: str) -> None:
    """A step on inputs that were moved by their gradient is that of one device; asking alone is no gradient to step with."""
    graphs, (x, y) = [], data(12)
    for size in (1, 2):
        graph, inputs = on(size, made(norm=False), plain), x.clone().requires_grad_()
        loss = F.cross_entropy(graph(inputs), y)
        if by == "grad":
            (gradient,) = torch.autograd.grad(loss, inputs)
        else:
            loss.backward(inputs=[inputs])
            assert inputs.grad is not None
            gradient = inputs.grad
        assert gradient.any()
        with pytest.raises(GraphError, match="step without a gradient"):
            graph.step()
        backward(graph, x + 0.1 * gradient.sign(), y)
        graph.step()
        graphs.append(graph)
    assert distance(*graphs) < 1e-6


def test_a_schedule_that_fails_leaves_the_gradients_as_they_were() -> None:
    """The step can be taken again, on any number of devices."""
    graphs, (x, y) = [], data(12)
    for size in (1, 2):
        graph = on(size, made(norm=False), plain)
        backward(graph, x, y)
        graph.set_scheduler(lambda step: float("nan"))
        with pytest.raises(ValueError, match="must be a finite"):
            graph.step()
        graph.set_scheduler(lambda step: 0.1)
        graph.step()
        graphs.append(graph)
    assert distance(*graphs) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_loss_in_half_precision_does_not_overflow(dtype: torch.dtype) -> None:
    """Its mean over the replicas is rounded once, however many samples they have."""

    class Loss(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.mean() * 0 + 20.125).to(dtype)

    def losing(device: Any = "cpu") -> Graph:
        return FlowBuilder.from_(nn.Linear(6, 3)).through(Loss()).build()

    graph = on(2, losing(), losing)
    loss = graph(torch.ones(16383, 6))
    assert torch.equal(loss, torch.tensor(20.125, dtype=dtype))
    loss.backward()
    graph.step()


def test_backward_passes_on_the_first_device_run_on_the_thread_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device other than the CPU has one thread of autograd, and that one waits for the replicas."""
    first, second, cpu = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")
    assert parallel.at_home([first, second, first, cpu]) == [0, 2]
    assert parallel.at_home([cpu, first, cpu]) == []

    class Named(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.register_hook(lambda _: names.append(threading.current_thread().name))
            return x * 2

    def named(device: Any = "cpu") -> Graph:
        return FlowBuilder.from_(nn.Linear(6, 3)).through(Named()).build()

    names: list[str] = []
    monkeypatch.setattr(parallel, "at_home", lambda devices: [0])
    graph = on(3, named(), named)
    graph(data(12)[0]).sum().backward()
    assert sorted(names) == [threading.current_thread().name, "replica-1", "replica-2"]
    graph.step()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_on_the_calling_thread_waits_for_the_others(rank: int) -> None:
    """Nothing of a run goes on once it has raised."""
    done: list[int] = []

    def work(own: int) -> Callable[[], None]:
        def run() -> None:
            if own == rank:
                raise KeyError(own)
            time.sleep(0.02 * own)
            done.append(own)

        return run

    team = WorkerThreads(3)
    with pytest.raises(ReplicaFailed, match=f"replica {rank}"):
        team.run([work(own) for own in range(3)], here=[0])
    assert sorted(done) == sorted({0, 1, 2} - {rank})
    team.close()


@pytest.mark.parametrize("parallel", [True, False])
def test_checkpoints_draw_again_what_they_drew(parallel: bool) -> None:
    """To the bits of training without them, and the caller's generator moves alike."""

    class Drops(nn.Module):
        def __init__(self, checkpoints: bool) -> None:
            super().__init__()
            self.first, self.checkpoints = nn.Linear(6, 256), checkpoints

        def drop(self, x: Tensor) -> Tensor:
            return F.dropout(F.dropout(self.first(x).relu(), 0.5), 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.drop, x, use_reentrant=False) if self.checkpoints else self.drop(x)

    ends, (x, y) = [], data(300)
    for checkpoints in (False, True):

        def dropping(device: Any = "cpu", checkpoints: bool = checkpoints) -> Graph:
            return FlowBuilder.from_(Drops(checkpoints)).through(nn.Linear(256, 3)).build()

        torch.manual_seed(0)
        graph = on(3, dropping(), dropping, parallel=parallel)
        for _ in range(9):  # shares stay equal
            backward(graph, x, y)
            graph.step()
        ends.append((graph, torch.get_rng_state()))
    assert equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
