"""Own layers whose parameters are gathered for use and freed afterwards: their memory, and the placeholder meanwhile.

A layer is a module with the parameters that it has itself. The backward pass gathers parameters again instead of keeping
them: a tensor saved by autograd that is in a gathered layer is replaced by a reference to the layer.
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
"""Attributes (`METADATA`) and methods that do not need the values."""


class ShardedParameter(nn.Parameter):
    """Class of a parameter whose values are in shards. Every operation on its values first calls `materialize`."""

    materialize: Callable[[nn.Parameter], None]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return metadata directly; before anything else, materialize the values."""
        name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in METADATA and getattr(func, "__name__", "") not in QUESTIONS:
            for value in _flat((args, kwargs or {})):
                if isinstance(value, ShardedParameter):
                    value.materialize(value)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _flat(values: Any) -> Iterable[Any]:
    """Yield the values in nested lists, tuples and dictionaries."""
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
    """This rank's shards of the group, in memory from which other ranks can gather."""
    values: Tensor | None = None
    """The gathered parameters, concatenated; None: not gathered."""

    @property
    def elements(self) -> int:
        """Return the total number of elements of its parameters."""
        return sum(shape.numel() for shape in self.shapes)


class Unit:
    """One layer that is gathered and freed as a whole."""

    def __init__(self, name: str, blocks: list[ShardedLayer], materialize: Callable[[nn.Parameter], None]) -> None:
        self.name, self.blocks, self._materialize = name, blocks, materialize
        self.bytes = sum(block.elements * block.source.element_size() for block in blocks)
        self.trained = {p for block in blocks for p in block.parameters if p.requires_grad}
        self.pins = 0
        """Number of forward passes that are inside of it."""
        self.waits: list[Wait] = []
        self.here = False
        """Whether its parameters are gathered and can be used."""

    @property
    def in_memory(self) -> bool:
        """Return whether it uses memory: it is gathered, or being gathered."""
        return any(block.values is not None for block in self.blocks)

    def start(self, all_gather: AllGather) -> None:
        """Start to gather."""
        for block in self.blocks:
            block.values = torch.empty(block.elements, dtype=block.source.dtype, device=block.source.device)
            self.waits.append(all_gather(block.values, block.source, block.runs))

    def finish(self) -> None:
        """Wait until the layer is gathered, and set its parameters."""
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
        """Free the values. Waits for a gather in progress, because that writes to the memory."""
        waits, self.waits, self.here, self.pins = self.waits, [], False, 0
        for wait in waits:
            wait()
        for block in self.blocks:
            block.values = None
            for parameter, shape in zip(block.parameters, block.shapes, strict=True):
                if not isinstance(parameter, ShardedParameter):
                    # Autograd needs the shape for the gradient. An unexpected read of the values gives NaN.
                    nothing = torch.zeros((), dtype=block.source.dtype, device=block.source.device)
                    parameter.data = (nothing / 0 if nothing.is_floating_point() else nothing).expand(shape)
                    parameter.__class__ = ShardedParameter
                    parameter.materialize = self._materialize  # type: ignore[attr-defined]

    def restore(self) -> None:
        """Make its parameters ordinary ones again, without values of their own yet."""
        self.free()
        for block in self.blocks:
            for parameter in block.parameters:
                parameter.__class__ = nn.Parameter
                del parameter.materialize  # type: ignore[attr-defined]


def units(
    model: nn.Module, groups: list[ShardGroup], sources: list[Tensor], materialize: Callable[[nn.Parameter], None]
) -> tuple[list[Unit], dict[nn.Module, list[Unit]]]:
    """Return the layers of `model`, and for each module with parameters the layers that it needs; a module that shares a
    parameter with another needs both layers."""
    where = {
        p: (group, i, source)
        for group, source in zip(groups, sources, strict=True)
        for i, p in enumerate(group.parameters)
    }
    layers: list[Unit] = []
    owner: dict[nn.Parameter, Unit] = {}
    needs: dict[nn.Module, list[Unit]] = {}
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        fresh = [parameter for parameter in own if parameter not in owner]
        if fresh:
            blocks = [_block(fresh, group, source) for group, source in zip(groups, sources, strict=True)]
            unit = Unit(name or type(model).__name__, [b for b in blocks if b.parameters], materialize)
            layers.append(unit)
            owner |= dict.fromkeys(fresh, unit)
        if own:
            needs[module] = list(dict.fromkeys(owner[parameter] for parameter in own))
    assert owner.keys() == where.keys()
    return layers, needs


def _block(parameters: list[nn.Parameter], group: ShardGroup, source: Tensor) -> ShardedLayer:
    index = {parameter: i for i, parameter in enumerate(group.parameters)}
    mine = [parameter for parameter in parameters if parameter in index]
    runs: list[ShardRange] = []
    for parameter in mine:
        first, last = group.layout.span(index[parameter])
        # Convert the offset in the sequence to an offset in the owner's memory.
        runs += [
            (owner, start + first - group.layout.cuts[owner], stop + first - group.layout.cuts[owner])
            for owner, start, stop in group.layout.runs(first, last)
        ]
    return ShardedLayer(mine, [group.shapes[index[p]] for p in mine], runs, source)
