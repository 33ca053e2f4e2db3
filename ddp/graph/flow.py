"""`Flow`: modules wired into one, an ordinary `nn.Module` whose children carry the labels of the nodes.

Owns the order of nodes and the tagged values of the last pass. Must not know how a flow is written (`ddp.graph.builder`),
nor that it can be trained (`ddp.graph.graph`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from ddp.graph.errors import GraphError
from ddp.graph.nodes import Loop, shape_of
from ddp.graph.structure import describe, digest


@dataclass(frozen=True)
class FlowStep:
    """The place of a node in the flow."""

    label: str
    """Name of the node's module among the children of the graph."""
    using: tuple[str, ...] = ()
    """Tags whose values the module gets after the flow's value."""
    tags: tuple[str, ...] = ()
    """Names under which the output is kept."""
    side: bool = False
    """A fork: its output does not become the flow's value."""


class FlowOutput(NamedTuple):
    """What came out of a forward pass."""

    value: Any
    tagged: dict[str, Any]
    traced: dict[str, Any]
    """Of tagged loops, the values of all iterations."""


class Flow(nn.Module):
    """A flow of modules. The first node receives all inputs of `forward`.

    After a forward pass `tagged` reads the values that were tagged in it, with their autograd graph, so that an
    auxiliary loss can use them. They are let go when the next forward pass starts, and neither copied nor pickled.
    """

    def __init__(self, steps: Iterable[FlowStep], modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self._steps = tuple(steps)
        self._kept: dict[str, Any] = {}
        self._traced: dict[str, Any] = {}
        for step, module in zip(self._steps, modules, strict=True):
            self.add_module(step.label, module)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return all tags, in the order of the flow."""
        return tuple(tag for step in self._steps for tag in step.tags)

    def tagged(self, tag: str) -> Any:
        """Return the value tagged `tag` in the last forward pass. Raises GraphError for an unknown tag, or before a pass."""
        if tag in self._kept:
            return self._kept[tag]
        if tag not in self.tags:
            raise GraphError(f"no tag {tag!r} in this graph; its tags are {list(self.tags)}")
        owner = next(step.label for step in self._steps if tag in step.tags)
        raise GraphError(f"tag {tag!r} has no value before a completed forward pass", owner)

    def traces(self, tag: str) -> list[Any]:
        """Return the values of all iterations of the loop tagged `tag` in the last forward pass. Raises GraphError for
        another tag, or before a pass."""
        if tag in self._traced:
            return list(self._traced[tag])
        looped = [tag for step in self._steps if isinstance(self._modules[step.label], Loop) for tag in step.tags]
        if tag in looped:
            return [self.tagged(tag)]  # raises: there was no pass
        raise GraphError(f"no loop is tagged {tag!r} in this graph; those with a tag are {looped}")

    def forward(self, *inputs: Any) -> Any:
        """Return the value at the end of the flow. Raises GraphError, naming the node and its input shapes, where shapes
        misfit."""
        self._kept, self._traced = {}, {}  # First of all: two passes' activations never live at the same time.
        return self.keep(self._pass(inputs))

    def _pass(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Do the pass that `forward` is called for."""
        return self.flow(*inputs)

    def keep(self, output: FlowOutput) -> Any:
        """Keep what a pass has tagged, for `tagged` and `traces`; return its value."""
        self._kept, self._traced = output.tagged, output.traced
        return output.value

    def flow(self, *inputs: Any) -> FlowOutput:
        """Return what comes of a forward pass of this graph alone, distributed or not; keeps nothing."""
        kept: dict[str, Any] = {}
        traced: dict[str, Any] = {}
        for step in self._steps:
            passed = (*inputs, *(kept[tag] for tag in step.using)) if step.using else inputs
            value = self._run(step.label, passed)
            if isinstance(self._modules[step.label], Loop):
                traced |= dict.fromkeys(step.tags, value)
                value = value[-1]
            for tag in step.tags:
                kept[tag] = value
            if not step.side:
                inputs = (value,)
        return FlowOutput(inputs[0], kept, traced)

    def _run(self, label: str, inputs: tuple[Any, ...]) -> Any:
        module = self._modules[label]
        assert module is not None
        try:
            return module(*inputs)
        except GraphError as error:
            if error.node:
                raise error.within(label) from error
            raise GraphError(f"{error.problem} (inputs: {shape_of(inputs)})", label) from error
        except (RuntimeError, ValueError) as error:
            # Subclasses are not about shapes (out of memory, a lost peer): they pass as they are.
            if type(error) not in (RuntimeError, ValueError):
                raise
            raise GraphError(f"{error} (inputs: {shape_of(inputs)})", label) from error

    @property
    def structural_hash(self) -> str:
        """Return 64 hex digits, equal for graphs that compute the same function of weights and input.

        Changes with modules, their hyper-parameters and the wiring; not with weights, labels, names of tags or mode.
        Stable across processes and runs.
        """
        return digest(self.structure())

    def structure(self) -> tuple[Any, ...]:
        """Return what the hash is made of: for each node its module, its wiring by position, and whether it is a fork."""
        position = {tag: index for index, step in enumerate(self._steps) for tag in step.tags}
        return tuple(
            (describe(self._modules[step.label]), tuple(position[tag] for tag in step.using), step.side)
            for step in self._steps
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_traced": {}}
