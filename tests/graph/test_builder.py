"""Every verb of the flow builder, and every way to misuse it."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from ddp.graph import FlowBuilder, GraphError


class Pair(nn.Module):
    """Adds what it is given, with weights 1, 10, 100: shows which inputs arrived, and in which order."""

    def forward(self, *values: Tensor) -> Tensor:
        return sum(value * 10**power for power, value in enumerate(values))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


ONE = torch.ones(2, 3)


def start(factor: float = 1.0) -> FlowBuilder:
    return FlowBuilder.from_(Times(factor))


def value(flow: FlowBuilder) -> float:
    out = flow.build()(ONE)
    assert out.shape == ONE.shape
    return float(out[0, 0])


def test_through_chains() -> None:
    assert value(start(2).through(Times(3)).through(Times(5))) == 30


def test_also_is_residual() -> None:
    assert value(start(2).also(Times(3))) == 2 + 6


def test_also_with_has_its_own_shortcut() -> None:
    assert value(start(2).also_with(Times(5), Times(3))) == 10 + 6


def test_fork_leaves_the_flow_alone() -> None:
    graph = start(2).fork(Times(7), tag="side").through(Times(3)).build()
    assert float(graph(ONE)[0, 0]) == 6
    assert float(graph.tagged("side")[0, 0]) == 14


def test_tag_after_a_fork_names_its_output_and_the_next_tag_the_flow() -> None:
    graph = start(2).fork(Times(7)).tag("side").tag("trunk").build()
    graph(ONE)
    assert (float(graph.tagged("side")[0, 0]), float(graph.tagged("trunk")[0, 0])) == (14, 2)
    graph = start(2).fork(Times(7), "side").tag("trunk").build()
    graph(ONE)
    assert float(graph.tagged("trunk")[0, 0]) == 2


@pytest.mark.parametrize(
    ("op", "expected"),
    [("add", 60), ("mean", 20), (lambda a, b, c: a * b - c, 170), (functools.partial(Pair()), 10 + 200 + 3000)],
)
def test_split_and_merge(op: object, expected: float) -> None:
    assert value(start(10).split([Times(1), Times(2), Times(3)]).merge(op)) == expected


def test_merge_of_two_adds_and_concat_joins_dimension_one() -> None:
    assert value(start(10).split([Times(1), Times(2)]).merge("add")) == 30
    graph = (
        FlowBuilder.from_(nn.Conv2d(1, 2, 1)).split([nn.Conv2d(2, 3, 1), nn.Conv2d(2, 4, 1)]).merge("concat").build()
    )
    assert graph(torch.zeros(5, 1, 6, 7)).shape == (5, 7, 6, 7)


def test_merge_by_a_module_trains_its_parameters() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.tensor(0.5))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.gate * a + b

    graph = start().split([Times(1), Times(2)]).merge(Gate()).label("gate").build()
    assert list(graph.state_dict()) == ["gate.op.gate"]
    assert graph(ONE)[0, 0].item() == 2.5


def test_using_passes_tagged_values_in_order() -> None:
    flow = start(1).tag("a").through(Times(2)).tag("b").through(Times(3))
    assert value(flow.using("b", "a").through(Pair())) == 6 + 20 + 100
    flow = start(1).tag("a").through(Times(2)).using("a").also(Pair())
    assert value(flow) == 2 + (2 + 10)
    flow = start(1).tag("a").through(Times(2)).using("a").split([Pair(), Pair()]).merge("add")
    assert value(flow) == 24
    flow = start(1).tag("a").through(Times(2)).using("a").fork(Pair(), "side").using("side").through(Pair())
    assert value(flow) == 2 + 120
    flow = start(3).tag("a").through(Times(2)).using("a").using("a").through(Pair())
    assert value(flow) == 6 + 30 + 300


def test_using_applies_to_one_module_only() -> None:
    assert value(start(1).tag("a").using("a").through(Pair()).through(Pair())) == 11


def test_the_first_node_gets_all_inputs_of_the_graph() -> None:
    graph = FlowBuilder.from_(Pair()).build()
    assert float(graph(ONE, ONE, ONE)[0, 0]) == 111


def test_nested_builders_and_graphs() -> None:
    inner = start(2).tag("inner").also(Times(3))
    graph = start(5).through(inner).through(start(10).build()).also_with(start(1), start(2)).build()
    assert float(graph(ONE)[0, 0]) == 5 * 8 * 10 * 3
    assert float(graph.get_submodule("graph_1").tagged("inner")[0, 0]) == 10
    extra = start(1).tag("a").through(Times(2)).using("a").through(FlowBuilder.from_(Pair()).through(Times(2)))
    assert value(extra) == 24


def test_labels_name_parameters_and_defaults_tell_class_and_position() -> None:
    graph = (
        FlowBuilder.from_(nn.Linear(3, 4))
        .through(nn.ReLU())
        .also(nn.Linear(4, 4))
        .also_with(nn.Linear(4, 5), FlowBuilder.from_(nn.Linear(4, 5)).label("fc"))
        .split([nn.Linear(5, 2), nn.Linear(5, 2)])
        .label("heads")
        .merge("add")
        .fork(nn.Linear(2, 1), "aux")
        .build()
    )
    owners = list(dict.fromkeys(name.rsplit(".", 1)[0] for name in graph.state_dict()))
    assert owners == [
        "linear_0",
        "also_2.main",
        "also_with_3.main.fc",
        "also_with_3.shortcut",
        "heads.0",
        "heads.1",
        "fork_6",
    ]
    assert list(dict(graph.named_children())) == [
        "linear_0",
        "relu_1",
        "also_2",
        "also_with_3",
        "heads",
        "merge_5",
        "fork_6",
    ]


def test_builders_share_nothing() -> None:
    one, two = start(2).tag("a"), start(3).tag("a")
    one.through(Times(5))
    assert (value(one), value(two)) == (10, 3)


def test_a_module_with_weights_is_taken_once_but_an_activation_may_come_again() -> None:
    relu, linear = nn.ReLU(), nn.Linear(3, 3)
    graph = FlowBuilder.from_(linear).through(relu).through(relu).build()
    assert graph(ONE).shape == (2, 3)
    with pytest.raises(GraphError, match=r"node 'also_2': Linear is already part of node 'first'"):
        FlowBuilder.from_(linear).label("first").through(relu).also(nn.Sequential(linear))
    with pytest.raises(GraphError, match=r"node 'split_1': Linear is already part of node 'split_1'"):
        start().split([linear, linear])
    again = start().build()
    with pytest.raises(GraphError, match=r"node 'graph_1': Graph is already part of node 'graph_0'"):
        FlowBuilder.from_(again).through(again)


MISUSE = {
    "unknown tag": (
        lambda: start().tag("a").using("b"),
        r"node 'using_1': using unknown tag 'b': tags so far are \['a'\]",
    ),
    "using before tag": (lambda: start().using("a").through(Pair()).tag("a"), "node 'using_1': using unknown tag 'a'"),
    "duplicate tag": (
        lambda: start().tag("a").through(Times(2)).tag("a"),
        "node 'times_1': duplicate tag 'a'.*'times_0'",
    ),
    "duplicate label": (lambda: start().label("a").through(Times(2)).label("a"), "node 'times_1': duplicate label 'a'"),
    "label taken by default": (lambda: start().label("relu_1").through(nn.ReLU()), "node 'relu_1': duplicate label"),
    "label with a dot": (lambda: start().label("a.b"), "node 'times_0': label 'a.b' cannot be used"),
    "label of an attribute": (lambda: start().label("forward"), "node 'times_0': label 'forward' cannot be used"),
    "merge without split": (lambda: start().merge("add"), "node 'merge_1': merge without a split"),
    "unknown merge": (lambda: start().split([Times(1), Times(2)]).merge("sum"), "node 'merge_2': unknown merge 'sum'"),
    "split at build": (lambda: start().split([Times(1), Times(2)]).build(), "node 'split_1': split without a merge"),
    "split not merged": (
        lambda: start().split([Times(1), Times(2)]).through(Times(1)),
        "node 'times_2': the split before",
    ),
    "split of one": (lambda: start().split([Times(1)]), "node 'split_1': a split needs two branches or more, got 1"),
    "tag on a split": (lambda: start().split([Times(1), Times(2)]).tag("a"), "node 'split_1': tag 'a' on a split"),
    "using at build": (lambda: start().tag("a").using("a").build(), r"node 'times_0': using \['a'\] is not followed"),
    "using then tag": (lambda: start().tag("a").using("a").tag("b"), r"node 'times_0': using \['a'\] must be followed"),
    "using then merge": (
        lambda: start().tag("a").split([Times(1), Times(2)]).using("a").merge("add"),
        r"node 'merge_2': a merge takes no extra inputs",
    ),
    "fork unread at build": (lambda: start().fork(Times(2)).build(), "node 'fork_1': fork without a tag"),
    "fork unread": (lambda: start().fork(Times(2)).through(Times(2)), "node 'times_2': the fork before it has no tag"),
    "no module": (lambda: start().through(torch.relu), "node 'builtin_function_or_method_1': expected a module"),
    "a class": (lambda: start().also(nn.ReLU), "node 'also_1': expected a module.*make an instance"),
    "empty": (lambda: FlowBuilder().build(), "empty flow"),
    "tag of nothing": (lambda: FlowBuilder().tag("a"), "tag before the first module"),
    "forks only": (lambda: FlowBuilder().fork(Times(2), "a").build(), "node 'fork_0': a flow of forks only"),
    "tag of the input": (
        lambda: FlowBuilder().fork(Times(2), "a").tag("b"),
        "node 'fork_0': tag 'b' on the graph's input",
    ),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_an_error_that_names_the_node(name: str) -> None:
    act, message = MISUSE[name]
    with pytest.raises(GraphError, match=message):
        act()


def test_a_built_builder_is_closed() -> None:
    flow = start()
    flow.build()
    for again in (flow.build, lambda: flow.through(Times(1)), lambda: flow.label("a"), lambda: start().through(flow)):
        with pytest.raises(GraphError, match="already built"):
            again()
