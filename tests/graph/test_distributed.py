"""A graph on several devices, as its user sees it: one script for any number of devices, and errors that say what to do."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ddp
from ddp.core.commands import Plan
from ddp.core.events import RoundClosed, Slice
from ddp.graph import DataLoader, DdpConfig, FlowBuilder, Graph, GraphError, setup, setup_with
from ddp.graph.team import Team
from tests.graph.oracle import build, data, distance, equal, made

TWO = ["cpu", "cpu"]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def on(size: int, graph: Graph | None = None, builder: Any = build, **config: Any) -> Graph:
    graph = made() if graph is None else graph
    setup_with(graph, builder, config.pop("optimizer", sgd), DdpConfig(devices=["cpu"] * size, **config))
    return graph


def plain(device: Any = "cpu") -> Graph:
    return build(device, norm=False)


def replicas(graph: Graph) -> list[Graph]:
    assert graph._training is not None
    assert graph._training.replicas is not None
    return list(graph._training.replicas.models)


def backward(graph: Graph, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(graph(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


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
    with pytest.raises(ValueError, match="finite and 0 or more"):
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


def test_gradients_that_the_caller_cleared_are_cleared() -> None:
    graph, alone = on(2, made(norm=False), plain), on(1, made(norm=False), plain)
    for model in (graph, alone):
        for one in replicas(model) if model is graph else [model]:
            one.zero_grad(set_to_none=True)
        backward(model, *data(12))
        model.step()
    assert distance(graph, alone) < 1e-6


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


def test_the_balancer_gives_a_slow_device_less() -> None:
    graph = on(2, speeds=(1.0, 0.1), max_anchor=0)
    for seed in range(12):
        backward(graph, *data(64, seed))
        graph.step()
    assert graph.chunk_ratios()[0] > 0.6
    assert graph.throughput()[0] > graph.throughput()[1]
    backward(graph, *data(64))
    assert graph.shard_sizes()[0] > 38


@pytest.mark.parametrize(
    ("config", "on_"),
    [
        ({}, False),
        ({"speeds": (1.0, 0.5)}, True),
        ({"speed_hint": (1.0, 0.4)}, True),
        ({"speed_hint": (1.0, 1.0)}, False),
        ({"max_anchor": 5}, True),
        ({"speeds": (1.0, 0.5), "max_anchor": 0}, False),
    ],
)
def test_el_che_where_devices_are_unequal(config: dict[str, Any], on_: bool) -> None:
    assert on(2, **config).has_el_che() == on_


def test_el_che_gives_a_slow_device_fewer_batches_and_records_it() -> None:
    records: list[Any] = []
    graph = on(2, speeds=(1.0, 0.2), max_anchor=2, timeline=lambda record, at: records.append(record))
    graph.set_data_loader(DataLoader(data(800), batch_size=8, names=["point", "class"]), "point")
    assert graph.batch_counts() == [2, 2]
    for batch in graph.epoch(0):
        F.cross_entropy(graph.forward_batch(batch), batch["class"]).backward()  # type: ignore[no-untyped-call]
        graph.step()
    counts = graph.batch_counts()
    assert counts[0] >= 2 * counts[1]
    assert graph.chunk_ratios() == pytest.approx([count / sum(counts) for count in counts])
    windows = [record for record in records if isinstance(record, RoundClosed)]
    assert len(windows) == graph.training_step()
    assert sum(sum(window.steps) for window in windows) == 100
    assert {type(record) for record in records} == {Slice, Plan, RoundClosed}
    assert {r.kind for r in records if isinstance(r, Slice)} >= {"forward", "backward", "optimizer", "exchange", "data"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_loader_brings_every_sample_once_and_the_members_fit(size: int) -> None:
    x, y = data(50)
    graph = on(size, made(norm=False), plain)
    graph.set_data_loader(DataLoader((x, y), batch_size=4))
    seen: Counter[tuple[float, ...]] = Counter()
    for batch in graph.epoch(1):
        assert len(batch["input"]) == len(batch["target"]) == len(batch)
        seen.update(tuple(row.tolist()) for row in batch["input"])
        graph.eval()
        torch.testing.assert_close(graph.forward_batch(batch), graph(batch["input"]))
    assert seen == Counter(tuple(row.tolist()) for row in x)
    first, again, other = (next(b["input"] for b in graph.epoch(n)) for n in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_data_set_of_dictionaries_and_a_last_batch_left_out() -> None:
    class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 11

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return {"point": torch.full((6,), float(index)), "number": torch.tensor(index)}

    graph = on(2, made(norm=False), plain)
    graph.set_data_loader(
        DataLoader(Rows(), batch_size=4, names=["point", "number"], drop_last=True, shuffle=False), "point"
    )
    batches = list(graph.epoch(0))
    assert [len(batch) for batch in batches] == [8]
    assert batches[0]["number"].tolist() == list(range(8))
    assert graph.forward_batch(batches[0]).shape == (8, 3)


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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_anchor": -1}, "0 for no El Che"),
        ({"max_grad_norm": 0.0}, "None: no limit"),
        ({"speeds": (1.0, 2.0)}, "0.5 makes a device half as fast"),
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


def test_answers_of_an_interrupted_run_are_nobodys() -> None:
    team, waited = Team(2), 0
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
