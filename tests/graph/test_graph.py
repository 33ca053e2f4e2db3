"""A built graph: a module like any other, with values to read, errors that name nodes, and a hash of its structure."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddp.graph import FlowBuilder, Graph, GraphError

ROOT = Path(__file__).parents[2]


def small(width: int = 8, bias: bool = True, p: float = 0.5, label: str = "fc", tag: str = "hidden") -> Graph:
    return (
        FlowBuilder.from_(nn.Linear(4, width, bias=bias))
        .label(label)
        .through(nn.ReLU())
        .tag(tag)
        .also(nn.Sequential(nn.Linear(width, width), nn.Dropout(p)))
        .through(nn.BatchNorm1d(width))
        .using()
        .through(nn.Linear(width, 3))
        .tag("logits")
        .build()
    )


def test_it_is_a_module_like_any_other() -> None:
    torch.manual_seed(0)
    graph, x = small().eval(), torch.randn(5, 4)
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph)), small().eval()):
        twin.load_state_dict(graph.state_dict())
        assert torch.equal(twin(x), graph(x))
        assert twin.structural_hash == graph.structural_hash
    assert graph.to(torch.float64)(x.double()).dtype == torch.float64
    assert not any(module.training for module in graph.modules())


def test_a_copy_after_a_training_pass_holds_no_values() -> None:
    graph = small()
    graph(torch.randn(5, 4)).sum().backward()
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        with pytest.raises(GraphError, match="before a completed forward"):
            twin.tagged("hidden")
    assert graph.tagged("hidden").shape == (5, 8)


def test_tagged_values_carry_gradient_and_live_until_the_next_forward_only() -> None:
    graph = small()
    graph(torch.randn(5, 4))
    graph.tagged("hidden").sum().backward()
    assert graph.get_parameter("fc.weight").grad is not None
    old = weakref.ref(graph.tagged("logits"))
    assert old() is not None
    seen = []
    graph.fc.register_forward_pre_hook(lambda *_: seen.append(old()))
    graph(torch.randn(5, 4))
    assert seen == [None]  # Gone as soon as the next pass began.


def test_reading_wrongly() -> None:
    graph = small()
    with pytest.raises(GraphError, match=r"no tag 'x' in this graph; its tags are \['hidden', 'logits'\]"):
        graph.tagged("x")
    with pytest.raises(GraphError, match="node 'linear_4': tag 'logits' has no value"):
        graph.tagged("logits")
    graph(torch.randn(5, 4))
    with pytest.raises(GraphError):
        graph(torch.randn(5, 6))
    with pytest.raises(GraphError, match="no value before a completed forward"):
        graph.tagged("hidden")


def two(**kinds: nn.Module) -> FlowBuilder:
    return FlowBuilder.from_(nn.Identity()).split(kinds.values())


SHAPES = {
    "module": (lambda: FlowBuilder.from_(nn.Linear(5, 2)).label("fc"), r"node 'fc': .*\(inputs: \(\[2, 4\]\)\)"),
    "also": (
        lambda: FlowBuilder.from_(nn.Identity()).also(nn.Linear(4, 1)),
        r"node 'also_1': .*unequal.*\[2, 4\], \[2, 1\]",
    ),
    "also_with": (
        lambda: FlowBuilder.from_(nn.Identity()).also_with(nn.Linear(4, 3), nn.Linear(4, 2)),
        r"node 'also_with_1': .*\[2, 3\], \[2, 2\]",
    ),
    "add": (lambda: two(a=nn.Linear(4, 1), b=nn.Linear(4, 3)).merge("add"), r"node 'merge_2': .*\[2, 1\], \[2, 3\]"),
    "mean": (lambda: two(a=nn.Linear(4, 1), b=nn.Linear(4, 3)).merge("mean"), r"node 'merge_2': .*\[2, 1\], \[2, 3\]"),
    "concat": (
        lambda: two(a=nn.Identity(), b=nn.Unflatten(1, (2, 2))).merge("concat").label("join"),
        r"node 'join': .*\[2, 4\], \[2, 2, 2\]",
    ),
    "function": (
        lambda: two(a=nn.Linear(4, 5), b=nn.Linear(4, 3)).merge(torch.mul),
        r"node 'merge_2': .*\[2, 5\], \[2, 3\]",
    ),
    "nested": (
        lambda: FlowBuilder.from_(nn.Identity()).also(FlowBuilder.from_(nn.Linear(5, 4)).label("fc")).label("block"),
        r"node 'block.fc': .*\[2, 4\]",
    ),
    "batch norm": (lambda: FlowBuilder.from_(nn.BatchNorm2d(4)), r"node 'batchnorm2d_0': expected 4D input"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_mismatch_names_the_node_and_the_shapes(name: str) -> None:
    make, message = SHAPES[name]
    graph = make().build()
    with pytest.raises(GraphError, match=message):
        graph(torch.zeros(2, 4))


def test_other_errors_pass_as_they_are() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        FlowBuilder.from_(Raises()).build()(torch.zeros(1))


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(GraphError("bad", "fc")))
    assert (str(error), error.node) == ("node 'fc': bad", "fc")


def test_hash_ignores_weights_names_and_mode() -> None:
    graph = small()
    same = graph.structural_hash
    assert same == small().eval().structural_hash == small(label="first", tag="h").structural_hash
    graph(torch.randn(5, 4)).sum().backward()
    assert graph.structural_hash == same


def variants() -> dict[str, Graph]:
    def flow() -> FlowBuilder:
        return FlowBuilder.from_(nn.Identity()).tag("a").through(nn.ReLU()).tag("b")

    return {
        "base": small(),
        "width": small(width=9),
        "bias": small(bias=False),
        "dropout": small(p=0.25),
        "plain": flow().build(),
        "using a": flow().using("a").through(nn.Bilinear(2, 2, 2)).build(),
        "using b": flow().using("b").through(nn.Bilinear(2, 2, 2)).build(),
        "fork": flow().fork(nn.Tanh(), "c").build(),
        "through": flow().through(nn.Tanh()).build(),
        "also": flow().also(nn.Tanh()).build(),
        "add": flow().split([nn.Tanh(), nn.ReLU()]).merge("add").build(),
        "mean": flow().split([nn.Tanh(), nn.ReLU()]).merge("mean").build(),
        "order": flow().split([nn.ReLU(), nn.Tanh()]).merge("mean").build(),
        "lambda": flow().split([nn.ReLU(), nn.Tanh()]).merge(lambda a, b: a + b).build(),
        "lambda 2": flow().split([nn.ReLU(), nn.Tanh()]).merge(lambda a, b: a - b).build(),
        "lambda 3": flow().split([nn.ReLU(), nn.Tanh()]).merge(lambda a, b: a - 2 * b).build(),
        "heads 2": flow().through(nn.MultiheadAttention(8, 2)).build(),
        "heads 4": flow().through(nn.MultiheadAttention(8, 4)).build(),
        "nested": flow().through(flow()).build(),
    }


def test_hash_tells_structures_apart() -> None:
    hashes = {name: graph.structural_hash for name, graph in variants().items()}
    assert len(set(hashes.values())) == len(hashes), hashes
    assert hashes == {name: graph.structural_hash for name, graph in variants().items()}


def test_hash_is_the_same_in_another_process() -> None:
    script = "from tests.graph.test_graph import variants\nprint([g.structural_hash for g in variants().values()])"
    other = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert other.stdout.strip() == str([graph.structural_hash for graph in variants().values()])
