"""Defines `FlowBuilder`, which builds a model from left to right, node by node.

Owns which flows are valid. Must not know how a flow runs: `Graph` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias, Union

from torch import nn

from ddp.graph.errors import GraphError
from ddp.graph.flow import FlowStep
from ddp.graph.graph import Graph
from ddp.graph.nodes import MERGES, Loop, Merge, Residual, Split

Part: TypeAlias = Union[nn.Module, "FlowBuilder"]
"""What a node is made of: a module, or a builder, whose `build` is called at once."""


class FlowBuilder:
    """Builds a graph of modules. Every method returns the builder, so calls can be chained; `build` returns the graph.

        FlowBuilder.from_(conv).through(nn.ReLU()).also(block).tag("features").through(head).label("head").build()

    The label of a node is its class or method and its position (`conv2d_0`, `also_2`), or the name given to `label`; it is
    the prefix of its parameters' names. A module instance with parameters or buffers can be used only once: two uses would
    share weights and running statistics without saying so. A module without them (an activation) can be used again. Every
    misuse raises a `GraphError` that names the node.
    """

    def __init__(self) -> None:
        self._steps: list[FlowStep] = []
        self._modules: list[nn.Module] = []
        self._owners: dict[int, str] = {}
        self._using: tuple[str, ...] = ()
        self._split = False  # A split waits for its merge.
        self._fork = False  # A fork waits for its tag.
        self._built = False

    @classmethod
    def from_(cls, module: Part) -> FlowBuilder:
        """Begin a flow with `module` as its first node, which receives all inputs of the graph."""
        return cls().through(module)

    def through(self, module: Part) -> FlowBuilder:
        """Apply `module` to the current value."""
        return self._add(_kind(module), lambda label: self._take(module, label))

    def also(self, module: Part) -> FlowBuilder:
        """Add a residual connection: `x + module(x)`. Both must have the same shape."""
        return self._add("also", lambda label: Residual(self._take(module, label), None))

    def also_with(self, shortcut: Part, module: Part) -> FlowBuilder:
        """Add a residual connection with a shortcut: `shortcut(x) + module(x)`. Both must have the same shape."""
        return self._add("also_with", lambda label: Residual(self._take(module, label), self._take(shortcut, label)))

    def loop(self, module: Part, times: int) -> FlowBuilder:
        """Apply `module` `times` times to its own output, with the same weights. `Graph.traces` returns the values of
        all iterations. Raise GraphError for fewer than one time."""
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise GraphError(f"a loop runs 1 time or more, not {times!r}", self._default("loop"))
        return self._add("loop", lambda label: Loop(self._take(module, label), times))

    def fork(self, module: Part, tag: str | None = None) -> FlowBuilder:
        """Store `module(x)` under `tag`, and continue with x. Without `tag`, a call of `.tag` must follow."""
        self._add("fork", lambda label: self._take(module, label), side=True)
        self._fork = True
        return self if tag is None else self.tag(tag)

    def split(self, modules: Iterable[Part]) -> FlowBuilder:
        """Apply each of `modules`, two or more, to the current value. A call of `merge` must follow. Raise GraphError
        for fewer."""
        parts = list(modules)
        if len(parts) < 2:
            raise GraphError(f"a split needs two branches or more, got {len(parts)}", self._default("split"))
        self._add("split", lambda label: Split([self._take(part, label) for part in parts]))
        self._split = True
        return self

    def merge(self, op: str | Callable[..., Any]) -> FlowBuilder:
        """Combine the branches of a split by `add`, `mean`, `concat` (along dimension 1) or a function `op(*branches)`.
        Raise GraphError for an unknown `op`, or without a split."""
        label = self._default("merge")
        if not self._split:
            raise GraphError("merge without a split before it", label)
        if self._using:
            raise GraphError(f"a merge takes no extra inputs, but using {list(self._using)} came before it", label)
        if isinstance(op, str) and op not in MERGES:
            raise GraphError(f"unknown merge {op!r}: choose one of {list(MERGES)}, or give a function", label)
        self._split = False
        if isinstance(op, nn.Module):
            self._take(op, label)
        return self._add("merge", lambda _: Merge(MERGES[op] if isinstance(op, str) else op))

    def using(self, *tags: str) -> FlowBuilder:
        """Pass the values of `tags` to the next module (of a split: to every branch) as further positional arguments.
        Raise GraphError for an unknown tag."""
        known = [tag for step in self._steps for tag in step.tags]
        for tag in tags:
            if tag not in known:
                raise GraphError(f"using unknown tag {tag!r}: tags so far are {known}", self._default("using"))
        self._using += tags
        return self

    def tag(self, name: str) -> FlowBuilder:
        """Name the current value for `using` and `Graph.tagged`. After a `fork` without a tag, name the output of the
        fork. Raise GraphError for a name that is taken, and where there is no value."""
        step = self._last("tag")
        if self._split:
            raise GraphError(f"tag {name!r} on a split: merge it first", step.label)
        owner = next((other.label for other in self._steps if name in other.tags), None)
        if owner is not None:
            raise GraphError(f"duplicate tag {name!r}: already given at node {owner!r}", step.label)
        index = len(self._steps) - 1
        if not self._fork:  # The flow's value is the output of the last node that is not a fork.
            index = max((i for i, other in enumerate(self._steps) if not other.side), default=-1)
            if index < 0:
                raise GraphError(f"tag {name!r} on the graph's input: begin with a module", step.label)
        self._fork = False
        self._steps[index] = replace(self._steps[index], tags=(*self._steps[index].tags, name))
        return self

    def label(self, name: str) -> FlowBuilder:
        """Set the label of the last node, a Python identifier: it appears in errors and is the prefix of its parameters'
        names."""
        step = self._last("label")
        self._check_label(name, step.label)
        self._steps[-1] = replace(step, label=name)
        self._owners = {key: name if owner == step.label else owner for key, owner in self._owners.items()}
        return self

    def build(self) -> Graph:
        """Return the graph. The builder cannot be used afterwards, because a second graph would share the weights of
        the first. Raise GraphError for an incomplete flow."""
        self._check_open("build")
        if not self._steps:
            raise GraphError("an empty flow: begin with FlowBuilder.from_(module)")
        label = self._steps[-1].label
        if self._split:
            raise GraphError("split without a merge", label)
        if self._fork:
            raise GraphError("fork without a tag: nothing can read its output", label)
        if self._using:
            raise GraphError(f"using {list(self._using)} is not followed by a module", label)
        if all(step.side for step in self._steps):
            raise GraphError("a flow of forks only has no output", label)
        self._built = True
        return Graph(self._steps, self._modules)

    def _add(self, kind: str, make: Callable[[str], nn.Module], side: bool = False) -> FlowBuilder:
        label = self._default(kind)
        self._check_open(label)
        if self._split:
            raise GraphError("the split before it is not merged", label)
        if self._fork:
            raise GraphError("the fork before it has no tag: nothing can read its output", label)
        self._check_label(label, label)
        self._modules.append(make(label))
        self._steps.append(FlowStep(label, self._using, side=side))
        self._using = ()
        return self

    def _take(self, part: Part, label: str) -> nn.Module:
        module = part.build() if isinstance(part, FlowBuilder) else part
        if not isinstance(module, nn.Module):
            hint = " (a class: make an instance of it)" if isinstance(module, type) else ""
            raise GraphError(f"expected a module, got {module!r}{hint}", label)
        for inner in module.modules():
            # A Graph stores tagged values: it has state even if it has no parameters.
            if isinstance(inner, Graph) or inner._parameters or inner._buffers:
                if id(inner) in self._owners:
                    owner = self._owners[id(inner)]
                    raise GraphError(f"{type(inner).__name__} is already part of node {owner!r}: make another", label)
                self._owners[id(inner)] = label
        return module

    def _default(self, kind: str) -> str:
        return f"{kind}_{len(self._steps)}"

    def _last(self, verb: str) -> FlowStep:
        self._check_open(verb)
        if not self._steps:
            raise GraphError(f"{verb} before the first module")
        if self._using:
            raise GraphError(
                f"using {list(self._using)} must be followed by a module, not by {verb}", self._steps[-1].label
            )
        return self._steps[-1]

    def _check_open(self, what: str) -> None:
        if self._built:
            raise GraphError("the flow is already built; begin another builder with new modules", what)

    def _check_label(self, name: str, node: str) -> None:
        if not name.isidentifier() or name.startswith("_") or name == "training" or hasattr(Graph, name):
            raise GraphError(
                f"label {name!r} cannot be used: take an identifier that is no attribute of a module", node
            )
        for index, step in enumerate(self._steps):
            if step.label == name:
                raise GraphError(f"duplicate label {name!r}: it belongs to the node at position {index}", node)


def _kind(part: Part) -> str:
    return "graph" if isinstance(part, FlowBuilder) else type(part).__name__.strip("_").lower()
