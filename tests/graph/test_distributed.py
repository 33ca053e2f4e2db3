"""A graph on several devices, as its user sees it: one script for any number of devices, and errors that say what to do."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ddp
from ddp.graph import DataLoader, DdpConfig, FlowBuilder, Graph, GraphError, setup, setup_with
from tests.graph.oracle import build, data, distance, equal, made
from tests.graph.several import backward, on, plain, replicas, sgd
from tests.runtime import toy


def test_on_one_device_it_is_plain_pytorch_bit_for_bit() -> None:
    graph, alone = made(dropout=0.3), made(dropout=0.3)
    setup(graph, lambda device: build(device, dropout=0.3), sgd)
    optimizer = sgd(alone.parameters())
    x, y = data(20)
    for model in (graph, alone):
        torch.manual_seed(2)
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if model is graph:
                graph.step()
            else:
                optimizer.step()
                optimizer.zero_grad()
    assert equal(graph, alone)
    assert (graph.world_size(), graph.is_distributed(), graph.devices()) == (1, False, [])
    assert (graph.chunk_ratios(), graph.throughput(), graph.shard_sizes()) == ([1.0], [0.0], [])
    assert not graph.has_el_che()
    assert graph.training_step() == 3


def test_what_several_devices_say(capsys: pytest.CaptureFixture[str]) -> None:
    graph = on(3)
    assert (graph.world_size(), graph.is_distributed()) == (3, True)
    assert graph.devices() == [torch.device("cpu")] * 3
    assert graph.chunk_ratios() == pytest.approx([1 / 3] * 3)
    assert graph.throughput() == [0.0] * 3
    backward(graph, *data(11))
    assert graph.shard_sizes() == [4, 4, 3]
    graph.step()
    assert min(graph.throughput()) > 0
    assert capsys.readouterr().err == "ddp: 3 CPU replicas\n"
    assert all(graph.training for graph in replicas(graph))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_reach_the_inputs_and_come_from_tagged_values(size: int) -> None:
    """A layer in front of the graph is trained through it, and an auxiliary loss on a tag through the transfers."""
    x, y = data(12)
    found = []
    for devices in (1, size):
        torch.manual_seed(1)
        front, graph = nn.Linear(6, 6), on(devices, made(norm=False), plain)
        loss = F.cross_entropy(graph(front(x)), y) + 0.1 * graph.tagged("hidden").square().mean()
        assert graph.tagged("hidden").shape == (12, 12)
        loss.backward()
        found.append((front.weight.grad, loss.detach(), graph))
        graph.step()
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])
    assert distance(found[0][2], found[1][2]) < 1e-6


def test_values_of_every_kind_come_together() -> None:
    class Many(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"twice": 2 * x, "loss": x.mean(), "which": x.argmax(1), "pair": (x, [x + 1]), "word": "same"}

    def many(device: Any) -> Graph:
        return FlowBuilder.from_(nn.Linear(4, 4)).through(Many()).build()

    torch.manual_seed(0)
    graph, x = many("cpu"), torch.randn(7, 4)
    whole = copy.deepcopy(graph)(x)
    setup_with(graph, many, sgd, DdpConfig(devices=["cpu"] * 3))
    value = graph(x)
    for key in ("twice", "which"):
        torch.testing.assert_close(value[key], whole[key])
    torch.testing.assert_close(value["pair"][1][0], whole["pair"][1][0])
    torch.testing.assert_close(value["loss"], whole["loss"])
    assert value["word"] == "same"
    value["loss"].backward()
    graph.step()


def test_loops_are_traced_over_all_devices() -> None:
    def looped(device: Any = "cpu") -> Graph:
        flow = FlowBuilder.from_(nn.Linear(6, 6)).loop(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), 3).tag("refine")
        return flow.through(nn.Linear(6, 3)).build()

    torch.manual_seed(0)
    graph, x = looped(), data(10)[0]
    twin = copy.deepcopy(graph)
    with pytest.raises(GraphError, match="no value before"):
        graph.traces("refine")
    twin(x)
    on(2, graph, looped)(x)
    assert len(graph.traces("refine")) == 3
    for one, other in zip(graph.traces("refine"), twin.traces("refine"), strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(graph.traces("refine")[-1], graph.tagged("refine"))
    with pytest.raises(GraphError, match=r"no loop is tagged 'x'.*\['refine'\]"):
        graph.traces("x")
    with pytest.raises(GraphError, match="1 time or more"):
        FlowBuilder().loop(nn.Linear(1, 1), 0)


def test_several_passes_add_up_until_the_step() -> None:
    graph, alone = on(2, made(norm=False), plain), on(1, made(norm=False), plain)
    for model in (graph, alone):
        for seed, size in ((1, 12), (2, 6)):
            backward(model, *data(size, seed))
        model.step()
    assert distance(graph, alone) < 1e-6


def test_learning_rates() -> None:
    graph = on(2, made(norm=False), plain)
    optimizers = graph._training._optimizers  # type: ignore[union-attr]

    def rates() -> list[float]:
        backward(graph, *data(8))
        graph.step()
        return [optimizer.param_groups[0]["lr"] for optimizer in optimizers]

    graph.set_lr_scale(2.0)
    assert rates() == [0.1, 0.1], "a scale without a scheduler has no effect"
    graph.set_scheduler(lambda step: 0.5 / (1 + step))
    assert rates() == [0.5, 0.5]

    class Steps:
        def lr(self, step: int) -> float:
            return 0.25 if step == 2 else 0.0

    graph.set_scheduler(Steps())
    assert rates() == [0.5, 0.5]
    graph.set_lr(0.01)
    assert rates() == [0.01, 0.01]
    with pytest.raises(ValueError, match="finite number of 0 or more"):
        graph.set_lr(float("nan"))
    with pytest.raises(ValueError, match="is neither"):
        graph.set_scheduler(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2])
def test_scalars_are_recorded_between_a_pass_and_its_step(size: int) -> None:
    graph, (x, y) = on(size), data(8)
    for step in range(3):
        loss = F.cross_entropy(graph(x), y)
        ddp.record_scalar("step", step)
        loss.backward()  # type: ignore[no-untyped-call]
        ddp.record_scalar("loss", loss)
        graph.step()
    assert graph.scalars()["step"] == 1.0
    assert graph.scalars() == {}
    with pytest.raises(RuntimeError, match="outside of a train step"):
        ddp.record_scalar("step", 1)


def test_samples_that_are_trained_in_evaluation_mode_are_counted_on_any_number_of_devices() -> None:
    """On one device the learning rate stayed where it was. What is only evaluated is not counted on any."""
    found, (x, y) = [], data(8)
    for size in (1, 2):
        graph = on(size, optimizer=sgd)
        graph.set_scheduler(lambda seen: 1.0 - seen, samples=80)
        graph.eval()
        for _ in range(3):
            loss = F.cross_entropy(graph(x), y)
            ddp.record_scalar("loss", loss)
            loss.backward()  # type: ignore[no-untyped-call]
            graph(x)
            asked = x.clone().requires_grad_()
            torch.autograd.grad(graph(asked).sum(), asked)
            graph.step()
        found.append(graph.lr())
        assert [*graph.scalars()] == ["loss"]
    assert found == pytest.approx([0.08, 0.08])


def test_other_parameter_groups_keep_their_proportion() -> None:
    def groups(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        return torch.optim.SGD([{"params": rest, "lr": 0.2}, {"params": [first], "lr": 0.1}])

    graph = on(2, optimizer=groups)
    graph.set_lr(1.0)
    assert [g["lr"] for o in graph._training._optimizers for g in o.param_groups] == [1.0, 0.5] * 2  # type: ignore[union-attr]


def test_a_limit_on_gradients_is_that_of_one_device() -> None:
    graphs = [on(size, made(norm=False), plain, max_grad_norm=0.01) for size in (1, 2, 3)]
    for graph in graphs:
        before = copy.deepcopy(graph)
        backward(graph, *data(12))
        graph.step()
        assert distance(graph, before) <= 0.1 * 0.01 * 1.001
    assert max(distance(graphs[0], graph) for graph in graphs[1:]) < 1e-7


def test_gradients_that_share_memory_are_limited_once() -> None:
    def summed(device: Any = "cpu") -> Graph:
        torch.manual_seed(0)
        return FlowBuilder.from_(toy.Summed()).build().to(device)

    one, two = (on(size, summed(), summed, max_grad_norm=0.01) for size in (1, 2))
    for graph in (one, two):
        backward(graph, *toy.data(12))
        graph.step()
    assert distance(one, two) < 1e-7


def test_evaluation_is_divided_too_and_changes_nothing() -> None:
    graph = on(3)
    backward(graph, *data(12))
    graph.step()
    before, x = copy.deepcopy(graph), data(2)[0]
    graph.eval()
    before.eval()
    with torch.no_grad():
        torch.testing.assert_close(graph(x), before(x))
    assert not graph(x[:0].new_zeros(1, 6)).isnan().any()
    assert graph.shard_sizes() == [1, 0, 0]
    assert equal(graph, before)
    assert not any(part.training for other in replicas(graph) for part in other.modules())


def test_threads_end_with_the_graph() -> None:
    before = set(threading.enumerate())
    graph = on(3)
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    backward(graph, *data(12))
    del graph
    gc.collect()
    for _ in range(100):
        if not any(thread.is_alive() for thread in started):
            break
        threading.Event().wait(0.01)
    assert not any(thread.is_alive() for thread in started)


def test_the_package_exports_it() -> None:
    assert ddp.setup is setup
    assert not ddp.is_heterogeneous()


def test_a_graph_is_pickled_and_a_copy_loads_for_itself() -> None:
    graph = on(2)
    again, copied, other = pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), made(5)
    assert equal(again, graph)
    with torch.no_grad():
        next(replicas(graph)[1].parameters()).fill_(7.0)  # what reaches the replicas, changes this
    for one in (again, copied):
        one.load_state_dict(other.state_dict())
        assert equal(one, other)
        assert bool((next(replicas(graph)[1].parameters()) == 7.0).all())
    outer = nn.Sequential(graph)
    outer.load_state_dict(nn.Sequential(other).state_dict())
    assert equal(replicas(graph)[1], other)


@pytest.mark.parametrize(("anchor", "unit", "samples"), [(0, 32, 64), (1, 8, 80)])
def test_drop_last_leaves_whole_batches_of_all_devices(anchor: int, unit: int, samples: int) -> None:
    """El Che's windows are made of whole batches of one device each."""
    graph = on(4, max_anchor=anchor)
    graph.set_data_loader(DataLoader(data(87), batch_size=8, drop_last=True))
    found = []
    for batch in graph.epoch(0):
        found.append(len(batch))
        F.cross_entropy(graph.forward_batch(batch), batch["target"]).backward()
        graph.step()
    assert sum(found) == samples
    assert not any(size % unit for size in found)
    graph = on(4, max_anchor=0)
    graph.set_data_loader(DataLoader(data(31), batch_size=8, drop_last=True))
    with pytest.raises(GraphError, match="24 samples make no batch of 32"):
        next(graph.epoch(0))
