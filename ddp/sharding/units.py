"""Own layers whose parameters are gathered for use and let go afterwards: their memory, and what stands in meanwhile.

A layer is a module with the parameters that it has itself. What the backward pass needs of them is not kept but fetched
again: saved tensors that lie in a gathered layer are packed as a reference to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddp.comm.transports.base import ShardRange, Wait
from ddp.sharding.shards import ShardGroup

AllGather = Callable[[Tensor, Tensor, list[ShardRange]], Wait]
METADATA = (
    "dtype",
    "device",
    "requires_grad",
    "is_leaf",
    "layout",
    "grad",
    "grad_fn",
    "shape",
    "ndim",
    "is_sparse",
    "_version",
)
QUESTIONS = ("__repr__", "size", "numel", "nelement", "dim", "is_floating_point", "element_size", "requires_grad_")
"""Attributes and methods that need no values."""


class ShardedParameter(nn.Parameter):
    """The class of a parameter whose values lie in shards. What would compute with it calls `materialize` first."""

    materialize: Callable[[nn.Parameter], None]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return metadata as they are; for all else bring the values back first."""
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in METADATA and getattr(func, "__name__", "") not in QUESTIONS:
            for value in _flat((args, kwargs or {})):
                if isinstance(value, ShardedParameter):
                    value.materialize(value)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _flat(values: Any) -> Iterable[Any]:
    """Yield what lies in nested lists, tuples and dictionaries."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from _flat(value)
    else:
        yield values


@dataclass(eq=False)
class ShardedLayer:
    """The parameters of a layer that belong to one group."""

    parameters: list[nn.Parameter]
    shapes: list[torch.Size]
    runs: list[ShardRange]
    source: Tensor
    """What this rank owns of the group, where others can fetch it."""
    values: Tensor | None = None
    """All of them, one behind another, while gathered."""

    @property
    def elements(self) -> int:
        """Return the elements of all its parameters."""
        return sum(shape.numel() for shape in self.shapes)


class Unit:
    """One layer."""

    def __init__(self, name: str, blocks: list[ShardedLayer], materialize: Callable[[nn.Parameter], None]) -> None:
        self.name, self.blocks, self._materialize = name, blocks, materialize
        self.bytes = sum(block.elements * block.source.element_size() for block in blocks)
        self.trained = {p for block in blocks for p in block.parameters if p.requires_grad}
        self.pins = 0
        """Forward passes that are in it."""
        self.waits: list[Wait] = []
        self.here = False
        """Its parameters can be used."""

    @property
    def held(self) -> bool:
        """Return whether it takes memory: it is here, or on its way."""
        return any(block.values is not None for block in self.blocks)

    def start(self, all_gather: AllGather) -> None:
        """Begin to gather."""
        for block in self.blocks:
            block.values = torch.empty(block.elements, dtype=block.source.dtype, device=block.source.device)
            self.waits.append(all_gather(block.values, block.source, block.runs))

    def finish(self) -> None:
        """Wait until all is there, and put it in place."""
        waits, self.waits = self.waits, []
        for wait in waits:
            wait()
        for block in self.blocks:
            assert block.values is not None
            views = torch.split(block.values, [shape.numel() for shape in block.shapes])
            for parameter, view, shape in zip(block.parameters, views, block.shapes, strict=True):
                parameter.__class__ = nn.Parameter
                parameter.data = view.view(shape)
        self.here = True

    def free(self) -> None:
        """Let go of the values. What is on its way is waited for: its memory is written to."""
        waits, self.waits, self.here, self.pins = self.waits, [], False, 0
        for wait in waits:
            wait()
        for block in self.blocks:
            block.values = None
            for parameter, shape in zip(block.parameters, block.shapes, strict=True):
                if not isinstance(parameter, ShardedParameter):
                    # Autograd looks at its shape where it puts a gradient; whoever reads it in spite of all reads NaN.
                    nothing = torch.zeros((), dtype=block.source.dtype, device=block.source.device)
                    parameter.data = (nothing / 0 if nothing.is_floating_point() else nothing).expand(shape)
                    parameter.__class__ = ShardedParameter
                    parameter.materialize = self._materialize  # type: ignore[attr-defined]

    def restore(self) -> None:
        """Make its parameters ordinary ones again, of whatever memory they are given."""
        self.free()
        for block in self.blocks:
            for parameter in block.parameters:
                parameter.__class__ = nn.Parameter
                del parameter.materialize  # type: ignore[attr-defined]


def units(
    model: nn.Module, groups: list[ShardGroup], sources: list[Tensor], materialize: Callable[[nn.Parameter], None]
) -> tuple[list[Unit], dict[nn.Module, list[Unit]]]:
    """Return the layers of `model`, and for each module with parameters those that it needs: one that shares another's
    needs both."""
    where = {
        p: (group, i, source)
        for group, source in zip(groups, sources, strict=True)
        for i, p in enumerate(group.parameters)
    }
    found: list[Unit] = []
    owner: dict[nn.Parameter, Unit] = {}
    needs: dict[nn.Module, list[Unit]] = {}
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        fresh = [parameter for parameter in own if parameter not in owner]
        if fresh:
            blocks = [_block(fresh, group, source) for group, source in zip(groups, sources, strict=True)]
            unit = Unit(name or type(model).__name__, [b for b in blocks if b.parameters], materialize)
            found.append(unit)
            owner |= dict.fromkeys(fresh, unit)
        if own:
            needs[module] = list(dict.fromkeys(owner[parameter] for parameter in own))
    assert owner.keys() == where.keys()
    return found, needs


def _block(parameters: list[nn.Parameter], group: ShardGroup, source: Tensor) -> ShardedLayer:
    index = {parameter: i for i, parameter in enumerate(group.parameters)}
    mine = [parameter for parameter in parameters if parameter in index]
    runs: list[ShardRange] = []
    for parameter in mine:
        first, last = group.layout.span(index[parameter])
        # From the line to where its owner has it.
        runs += [
            (owner, start + first - group.layout.cuts[owner], stop + first - group.layout.cuts[owner])
            for owner, start, stop in group.layout.runs(first, last)
        ]
    return ShardedLayer(mine, [group.shapes[index[p]] for p in mine], runs, source)
