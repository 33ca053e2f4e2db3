"""Own the third kind: parameters in shards, too. The parameters of a layer are gathered before its forward pass and again
when its backward pass needs them, and freed after each; meanwhile those of the next layer are being gathered.

The memory for gathered parameters is limited: in the backward pass to the size of the largest layer, because gradients need
as much, and in the forward pass to twice that. So a rank never has more than its shards and one layer's parameters and
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ddp.core.samples.spans import Batch
from ddp.sharding.units import ShardedLayer, Unit, units
from ddp.sharding.zero1 import ShardContext
from ddp.sharding.zero2 import Zero2

Saved = tuple[Unit, ShardedLayer, torch.Size, tuple[int, ...], int]
"""Placeholder for a saved tensor: (layer, block, size, stride and offset in the block's values)."""


class Zero3(Zero2):
    """ZeRO stage 3: between steps a rank has only its shards and the buffers."""

    def __init__(self, site: ShardContext) -> None:
        super().__init__(site)
        self._units, self._needs = units(site.model, self.groups, self._sources, self._materialize)
        self._of = {p: unit for unit in self._units for block in unit.blocks for p in block.parameters}
        self._largest = max((unit.bytes for unit in self._units), default=0)
        self._parted = self._active = self._backward = self._all = False
        self._recent: dict[Unit, None] = {}
        """Layers that are gathered or being gathered, the latest last."""
        self._missing: dict[Unit, int] = {}
        self._traces: dict[bool, list[Unit]] = {False: [], True: []}
        """Order of layers in the forward (False) and backward (True) pass of this step."""
        self._next: dict[tuple[bool, Unit], Unit] = {}
        """(backward, layer) -> layer that followed in the previous step."""
        self._packing = ExitStack()
        """Hooks during a step: tensors saved by autograd must not keep a layer in memory, nor outlive it."""
        self._handles: list[Any] = []
        self._hook()

    @staticmethod
    def _most(largest: int) -> int:
        """Return the number of elements in a bucket. It is small, because it is in memory together with a layer's own
        gradients."""
        return largest // 8

    def _place(self) -> None:
        self._sources: list[Tensor] = []
        for number, group in enumerate(self.groups):
            most = max(group.layout.length(rank) for rank in range(self.site.world_size))
            source = self.site.collectives.transport.empty(f"shard{number}", most, group.dtype)
            self._sources.append(source)

            def lie(parameter: nn.Parameter, start: int, stop: int, at: int, source: Tensor = source) -> Tensor:
                return source[at : at + stop - start].copy_(parameter.data.reshape(-1)[start:stop])

            group.place(lie)

    def _hook(self) -> None:
        for module, needed in self._needs.items():
            self._handles += [
                module.register_forward_pre_hook(partial(self._before, needed)),
                module.register_forward_hook(partial(self._after, needed), always_call=True),
            ]
        for parameter in self.site.state.parameters:
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]

    # What happens in a step.

    def begin(self, batch: Batch) -> float:
        """Begin a step. Layers are gathered one by one, or all at once if a rank has no samples and could not take part in
        that."""
        factor = super().begin(batch)
        if not self._parted:
            self._part()
        self._all = batch.idles
        self._begin_pass()
        for unit in self._units if self._all else ():
            self._gather(unit)
        self._packing.enter_context(saved_tensors_hooks(self._pack, self._unpack))
        return factor

    def _begin_pass(self) -> None:
        self._active, self._backward = True, False
        self._missing = {unit: len(unit.trained) for unit in self._units}
        self._traces = {False: [], True: []}

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Free all layers after the previous pass, and begin a new pass."""
        self._stop()
        self._learn()
        self._begin_pass()
        return super().one_pass(last)

    def exchange(self, batch: Batch) -> None:
        """Exchange as in `zero2`, after freeing all layers."""
        self._packing.close()
        self._stop()
        self._learn()
        super().exchange(batch)

    def _stop(self) -> None:
        self._active = self._backward = self._all = False
        for unit in list(self._recent):
            self._free(unit)

    def _learn(self) -> None:
        """Record the order of layers in the finished pass."""
        for backward, trace in self._traces.items():
            self._next |= {(backward, unit): other for unit, other in pairwise(trace)}

    def _hand_out(self) -> None:
        self.site.collectives.fence()

    def undo(self) -> None:
        """Restore the buffers, and free all layers."""
        self._packing.close()
        for unit in list(self._recent):
            unit.waits.clear()
        self._stop()
        super().undo()

    # Gathering and freeing layers.

    def _before(self, needed: list[Unit], module: nn.Module, args: Any) -> None:
        if not self._parted:
            return
        for unit in needed:
            if not self._active:
                raise ValueError(_outside(unit.name))
            self._need(unit)
            unit.pins += 1

    def _after(self, needed: list[Unit], module: nn.Module, args: Any, out: Any) -> None:
        for unit in needed if self._active else ():
            unit.pins = max(unit.pins - 1, 0)
            if not unit.pins and not self._backward and not self._all:
                self._free(unit)

    def _materialize(self, parameter: nn.Parameter) -> None:
        """Gather the layer of a parameter that is used outside of its module's forward pass."""
        unit = self._of[parameter]
        if not self._active:
            raise ValueError(_outside(unit.name))
        self._need(unit)

    def _pack(self, tensor: Tensor) -> Tensor | Saved:
        address = tensor.untyped_storage().data_ptr()
        for unit in self._recent:
            for block in unit.blocks:
                if unit.here and block.values is not None and block.values.data_ptr() == address:
                    if tensor.dtype != block.values.dtype:
                        return tensor
                    return unit, block, tensor.shape, tensor.stride(), int(tensor.storage_offset())
        return tensor

    def _unpack(self, saved: Tensor | Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        unit, block, shape, stride, offset = saved
        if not self._active:
            raise ValueError(_outside(unit.name))
        self._backward = True
        self._need(unit)
        assert block.values is not None
        return block.values.as_strided(shape, stride, offset)

    def _arrived(self, parameter: nn.Parameter) -> None:
        unit = self._of[parameter]
        self._backward = True
        self._missing[unit] -= 1
        if not self._missing[unit] and not self._all:
            self._free(unit)

    def _need(self, unit: Unit) -> None:
        """Gather a layer, and start to gather the next one if the memory limit allows it."""
        self._gather(unit)
        trace = self._traces[self._backward]
        if not trace or trace[-1] is not unit:
            trace.append(unit)
        if self._all:
            return
        limit = self._largest if self._backward else 2 * self._largest
        for other in [other for other in self._recent if other is not unit and not other.pins]:
            if sum(each.bytes for each in self._recent) > limit:
                self._free(other)
        after = self._next.get((self._backward, unit))
        if (
            after is not None
            and sum(each.bytes for each in self._recent) + after.bytes <= limit
            and not after.in_memory
        ):
            self._start(after)

    def _gather(self, unit: Unit) -> None:
        if not unit.here:
            if not unit.in_memory:
                self._start(unit)
            unit.finish()
        self._recent.pop(unit, None)
        self._recent[unit] = None

    def _start(self, unit: Unit) -> None:
        self._recent[unit] = None
        unit.start(self.site.collectives.all_gather)

    def _free(self, unit: Unit) -> None:
        self._recent.pop(unit, None)
        unit.free()

    # The whole model.

    def _part(self) -> None:
        """Free all parameters; from now on they are gathered only when needed."""
        for unit in self._units:
            unit.free()
        self.site.state.part()
        self._parted = True

    def meet(self) -> None:
        """Compare models as the other kinds do, then wait until the shards of all ranks can be gathered."""
        met = self._met
        super().meet()
        if not met:
            self.site.collectives.fence()

    @contextmanager
    def full_parameters(self) -> Iterator[None]:
        """Make the parameters whole inside of the block. Changes of parameters are lost without `reload`."""
        if not self._parted:
            yield
            return
        self._assemble()
        try:
            yield
        finally:
            self._part()

    def _assemble(self) -> None:
        if self._active:
            raise ValueError("the model cannot be made whole in the middle of a step: do it before or after")
        for unit in self._units:
            unit.restore()
        self._parted = False
        self.site.state.lay(fill=False)
        for unit in self._units:
            for block in unit.blocks:
                whole = torch.empty(block.elements, dtype=block.source.dtype, device=block.source.device)
                self.site.collectives.all_gather(whole, block.source, block.runs)()
                views = torch.split(whole, [shape.numel() for shape in block.shapes])
                for parameter, view, shape in zip(block.parameters, views, block.shapes, strict=True):
                    parameter.data.copy_(view.view(shape))

    def reload(self) -> None:
        """Copy the shards from the present whole parameters. Afterwards other ranks can gather them."""
        self.site.collectives.fence()
        for shard in self.shards:
            shard.values.data.copy_(shard.parameter.data.reshape(-1)[shard.start : shard.stop])
        self.site.collectives.fence()

    def gathered(self) -> list[Tensor]:
        """Return the tensors of parameters in memory besides usable ones: shards, and layers that are being gathered."""
        blocks = [block.values for unit in self._recent for block in unit.blocks]
        return [*self._sources, *(values for values in blocks if values is not None)]

    def unwrap(self) -> None:
        """End the sharding: see `Zero`."""
        if self._parted:
            self._assemble()
        super().unwrap()

    def _let_go(self) -> None:
        super()._let_go()
        for handle in self._handles:
            handle.remove()


def _outside(name: str) -> str:
    return (
        f"the parameters of {name} lie in shards outside a training step: use them within "
        "`with sharded.full_parameters():`, which all ranks enter together, or after `unwrap()`"
    )
