"""What goes wrong with a graph on several devices: errors that say what to do, and nothing left behind."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddp.graph import DataLoader, FlowBuilder, Graph, GraphError, setup
from ddp.graph.worker_threads import WorkerThreads
from tests.graph.oracle import build, data, made
from tests.graph.several import backward, on, sgd

TWO = ["cpu", "cpu"]


def other_width(device: Any) -> Graph:
    return FlowBuilder.from_(nn.Linear(6, 5)).label("first").build()


def other_wiring(device: Any) -> Graph:
    flow = (
        FlowBuilder.from_(nn.Linear(6, 12)).label("first").through(nn.BatchNorm1d(12)).label("norm").through(nn.ReLU())
    )
    return flow.tag("hidden").also(nn.Linear(12, 12)).through(nn.Linear(12, 3)).tag("logits").build()


def test_unequal_models_are_refused() -> None:
    graph = made()
    shared = made()
    for builder, message in (
        (other_width, "unequal models: only the graph has 'also_3.main.bias'"),
        (lambda device: build(norm=False), "unequal models"),
        (other_wiring, "equal parameters, but another structure"),
        (lambda device: graph, "the builder returned the graph itself"),
        (lambda device: nn.Linear(6, 3), "must return a Graph"),
    ):
        with pytest.raises(GraphError, match=message):
            on(2, graph, builder)
        assert not graph.is_distributed()
    with pytest.raises(GraphError, match="replicas share parameters"):
        on(3, made(), lambda device: shared)


def test_optimizers_that_would_step_a_parameter_once_for_every_device_are_refused() -> None:
    graph, extra = made(), torch.ones(1, requires_grad=True)
    for optimizer in (
        lambda given: torch.optim.SGD(graph.parameters(), lr=0.1),
        lambda given: torch.optim.SGD([*given, extra], lr=0.1),
    ):
        with pytest.raises(
            GraphError, match="stepped once for every device: make it of those that its factory is given"
        ):
            on(2, graph, optimizer=optimizer)
        assert not graph.is_distributed()
    on(1, graph, optimizer=optimizer)


def test_wrong_use_is_an_error_that_says_what_to_do() -> None:
    graph, (x, y) = on(2), data(8)
    with pytest.raises(GraphError, match="set up already: build another one"):
        on(2, graph)
    with pytest.raises(GraphError, match="distributed already: build another one"):
        graph.distribute(build, TWO)
    with pytest.raises(GraphError, match=r"call loss\.backward"):
        graph.step()
    graph(x)
    with pytest.raises(GraphError, match=r"call loss\.backward"):
        graph.step()
    loss = F.cross_entropy(graph(x), y)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="add the losses up"):
        loss.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(GraphError, match="empty batch"):
        graph(x[:0])
    with pytest.raises(GraphError, match="need one first dimension"):
        graph(torch.zeros(()))
    with pytest.raises(GraphError, match="call set_data_loader"):
        next(graph.epoch(0))
    with pytest.raises(GraphError, match=r"no member 'image'.*\['input', 'target'\]"):
        graph.set_data_loader(DataLoader((x, y), batch_size=4), "image")
    bare = made()
    for call in (bare.step, lambda: bare.set_lr(0.1), lambda: next(bare.epoch(0))):
        with pytest.raises(GraphError, match=r"call ddp\.setup"):
            call()
    with pytest.raises(GraphError, match="setup takes a Graph"):
        setup(nn.Linear(1, 1), build, sgd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two or more"):
        made().distribute(build, ["cpu"])
    assert made().auto_distribute(build) is (torch.cuda.device_count() > 1)


@pytest.mark.parametrize("passes_on", [True, False])
def test_an_optimizer_of_ones_own_is_refused_before_replicas_come_apart(passes_on: bool) -> None:
    graph = on(2)
    mine = sgd(graph.parameters())
    backward(graph, *data(12))
    mine.step()
    with pytest.raises(GraphError, match=r"use graph.step\(\)"):
        backward(graph, *data(12)) if passes_on else graph.step()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_anchor": -1}, "0 for no El Che"),
        ({"max_anchor": 1.5}, "0 for no El Che"),
        ({"overhead_target": float("nan")}, "between 0.01 and 0.5"),
        ({"speed_hint": "fast"}, "speed_hint='fast' must be a list"),
        ({"max_grad_norm": 0.0}, "leave it out for no limit"),
        ({"speeds": (1.0, 2.0)}, "0.5 makes a rank half as fast"),
        ({"speeds": (1.0,)}, "give one for each"),
        ({"speed_hint": (1.0, 0.5, 0.1)}, "for each of the 2|entries"),
        ({"overhead_target": 0.9, "max_anchor": 3}, "between 0.01 and 0.5"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on(2, **config)


def test_an_error_on_a_replica_names_the_node_and_the_replica() -> None:
    graph = on(2)
    with pytest.raises(GraphError, match="node 'first'") as caught:
        graph(torch.zeros(4, 5))
    assert any("replica 0" in note for note in caught.value.__notes__)
    backward(graph, *data(8))
    graph.step()


def test_what_does_not_come_together_says_why() -> None:
    def reducing(device: Any) -> Graph:
        return FlowBuilder.from_(nn.Linear(6, 4)).through(Sum()).build()

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(0)

    with pytest.raises(GraphError, match="first dimension must be the samples"):
        on(2, reducing("cpu"), reducing)(torch.zeros(6, 6))


def test_answers_of_an_interrupted_run_are_nobodys() -> None:
    team, waited = WorkerThreads(2), 0
    get = team._answers.get

    class Interrupted:
        def get(self) -> Any:
            nonlocal waited
            waited += 1
            if waited == 2:
                raise KeyboardInterrupt
            return get()

    team._answers = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        team.run([lambda: "old", lambda: "old"])
    assert team.run([lambda: "a", lambda: "b"]) == ["a", "b"]
    assert team.run([lambda: "c", lambda: "d"]) == ["c", "d"]
    team.close()


def test_a_pass_that_fails_puts_the_generator_back() -> None:
    """It teaches nothing of whether the model draws, either."""

    def drops(device: Any) -> Graph:
        return FlowBuilder.from_(nn.Linear(6, 6)).through(nn.Dropout(0.5)).build()

    graph, states = on(2, drops("cpu"), drops), []
    for inputs in (torch.ones(4, 5), torch.ones(4, 6)):
        torch.manual_seed(3)
        with suppress(GraphError):
            graph(inputs)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert graph._training is not None
    assert graph._training.replicas is not None
    assert graph._training.replicas._turns[True].taken
