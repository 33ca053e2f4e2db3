"""Defines `Flow`: modules wired into one `nn.Module`, whose children are named by the labels of the nodes.

Owns the order of nodes and the tagged values of the last forward pass. Must not know how a flow is built
(`ddp.graph.builder`), nor that it can be trained (`ddp.graph.graph`).
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
    """The position and wiring of a node in the flow."""

    label: str
    """Name of the node's module among the children of the graph."""
    using: tuple[str, ...] = ()
    """Tags whose values the module receives after the flow's value."""
    tags: tuple[str, ...] = ()
    """Names under which the output is stored."""
    side: bool = False
    """Whether the node is a fork: its output does not become the flow's value."""


class FlowOutput(NamedTuple):
    """The result of a forward pass."""

    value: Any
    tagged: dict[str, Any]
    traced: dict[str, Any]
    """Tag of a loop -> values of all its iterations."""


class Flow(nn.Module):
    """A flow of modules. The first node receives all inputs of `forward`.

    After a forward pass, `tagged` returns the tagged values with their autograd graph, so an auxiliary loss can use them.
    They are freed when the next forward pass starts, and are neither copied nor pickled.
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
        """Return the value tagged `tag` in the last forward pass. Raises GraphError for an unknown tag, or before the first
        pass."""
        if tag in self._kept:
            return self._kept[tag]
        if tag not in self.tags:
            raise GraphError(f"no tag {tag!r} in this graph; its tags are {list(self.tags)}")
        owner = next(step.label for step in self._steps if tag in step.tags)
        raise GraphError(f"tag {tag!r} has no value before a completed forward pass", owner)

    def traces(self, tag: str) -> list[Any]:
        """Return the values of all iterations of the loop tagged `tag`, in the last forward pass. Raises GraphError if
        `tag` is not the tag of a loop, or before the first pass."""
        if tag in self._traced:
            return list(self._traced[tag])
        looped = [tag for step in self._steps if isinstance(self._modules[step.label], Loop) for tag in step.tags]
        if tag in looped:
            return [self.tagged(tag)]  # raises: there was no pass
        raise GraphError(f"no loop is tagged {tag!r} in this graph; those with a tag are {looped}")

    def forward(self, *inputs: Any) -> Any:
        """Return the value at the end of the flow. If shapes do not fit, raises GraphError with the node and its input
        shapes."""
        self._kept, self._traced = {}, {}  # First: activations of two passes must never be in memory together.
        return self.keep(self._pass(inputs))

    def _pass(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Run the pass for `forward`; a subclass may distribute it."""
        return self.flow(*inputs)

    def keep(self, output: FlowOutput) -> Any:
        """Store the tagged values of a pass for `tagged` and `traces`. Return its value."""
        self._kept, self._traced = output.tagged, output.traced
        return output.value

    def flow(self, *inputs: Any) -> FlowOutput:
        """Return the result of a forward pass of this module alone, even if the graph is distributed. Stores nothing."""
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
            # Subclasses are other errors than shapes (out of memory, a lost peer): raise them unchanged.
            if type(error) not in (RuntimeError, ValueError):
                raise
            raise GraphError(f"{error} (inputs: {shape_of(inputs)})", label) from error

    @property
    def structural_hash(self) -> str:
        """Return 64 hex digits, equal for graphs that compute the same function of weights and input.

        The hash depends on modules, their hyper-parameters and the wiring; not on weights, labels, names of tags or
        training mode. It is the same in all processes and runs.
        """
        return digest(self.structure())

    def structure(self) -> tuple[Any, ...]:
        """Return the description that is hashed: for each node its module, its wiring by position, and whether it is a
        fork."""
        position = {tag: index for index, step in enumerate(self._steps) for tag in step.tags}
        return tuple(
            (describe(self._modules[step.label]), tuple(position[tag] for tag in step.using), step.side)
            for step in self._steps
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_traced": {}}
