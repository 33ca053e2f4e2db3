"""Own what all kinds of sharding have in common, and the first kind: optimizer state in shards. Knows no loop and no
checkpoint.

Gradients are summed at their owners, each owner updates its part of the parameters, and all ranks gather the result. After
every step all ranks have the same parameters, with the bits of a replay of all ranks' batches in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.comm.transports.base import MAX, ExchangeBroken, ShardRange
from ddp.core.errors import EngineError
from ddp.core.samples.spans import Batch
from ddp.gradients.average import meet_counters
from ddp.gradients.step_gradients import StepGradients
from ddp.process.clock import now
from ddp.process.meter import Meter
from ddp.replica.evidence.pieces import OPTIMIZER, PARAMETERS, StatePiece, of_buffers, tensors_of
from ddp.replica.evidence.step_sketches import NoSketches, StepSketches, Stretch, whole
from ddp.replica.gradient_sync import GradientSync
from ddp.replica.memory.flat import FlatState
from ddp.sharding.shards import ShardGroup, claim, disclaim, grouped, restore_optimizer, shard_optimizer


@dataclass(frozen=True)
class ShardContext:
    """Everything that sharding needs to know about one rank. Ranks 0 to `world_size` - 1 all build the same model."""

    model: nn.Module
    state: FlatState
    """Flat state of the model."""
    optimizer: torch.optim.Optimizer
    """Optimizer of the model's parameters. It stays the same object, and works on shards from now on."""
    collectives: Collectives
    meter: Meter
    world_size: int
    rank: int
    sketches: StepSketches = field(default_factory=NoSketches)


class Zero(GradientSync, Protocol):
    """A kind of sharding."""

    def full_parameters(self) -> AbstractContextManager[None]:
        """Make the model's parameters whole on every rank inside of the block. All ranks enter it together."""
        ...

    def changeable_parameters(self) -> AbstractContextManager[None]:
        """Make them whole in the same way, and keep what the block changes."""
        ...

    def unwrap(self) -> None:
        """End the sharding: the model is whole, in memory of its own, and may be trained alone or sharded again. The
        optimizer has its parameters again, without state: make a new one, or load the result of an earlier
        `full_state_dict`."""
        ...


class ShardedStep:
    """Base of all kinds of sharding; a `GradientSync`. Raises ValueError for a model that is sharded already, for an
    optimizer that needs whole tensors, and at the first step if the ranks' models differ."""

    whole_gradients = True
    """Whether a rank keeps whole gradients, with the parts of other ranks' shards, until the end of a step."""

    def __init__(self, site: ShardContext) -> None:
        self.site, self.module = site, site.model
        self.groups: list[ShardGroup] = grouped(site.model, site.world_size, site.rank)
        self._digest = site.state.digest()
        claim(site.model)
        try:
            self._place()
            self.before = shard_optimizer(site.optimizer, self.groups)
        except ValueError:
            disclaim(site.model)
            raise
        self.shards = [shard for group in self.groups for shard in group.shards]
        self.shapes = {
            p: shape for group in self.groups for p, shape in zip(group.parameters, group.shapes, strict=True)
        }
        """Shapes of the whole parameters."""
        site.sketches.share_out(self.shards)
        self._met = self._torn = self._unwrapped = False
        empty, whole = site.collectives.transport.empty, self.whole_gradients
        self.together = StepGradients(site.state, empty, gradients=whole, eager=whole)
        """Buffers and flags that are exchanged with all ranks; also whole gradients, if they are kept."""

    def _place(self) -> None:
        """Create the shards as views of the whole parameters, in memory from which other ranks can gather."""
        self.site.state.lay(self.site.collectives.transport.empty)
        for group in self.groups:
            if group.trained:
                group.place(lambda parameter, start, stop, at: parameter.data.view(-1)[start:stop])

    def meet(self) -> None:
        """Raise ValueError at the first step if the ranks' models differ; EngineError after a step that broke while
        parameters were gathered."""
        if self._torn:
            raise EngineError("an exchange of parameters broke: go on from a checkpoint")
        if self._met:
            return
        mine = int(self._digest[:15], 16)
        bounds = torch.tensor([mine, -mine], device=self.groups[0].device if self.groups else None)
        self.site.collectives.all_reduce([bounds], MAX)
        if bounds.tolist() != [mine, -mine]:
            raise ValueError(
                "ranks hold different models, so no shard fits: build the model alike on all ranks "
                "(same seed, same code), or load the same state before sharding"
            )
        self._met = True

    def backward(self) -> None:
        """Do nothing: gradients are sent as they arrive."""

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Let gradients accumulate where autograd puts them."""
        return nullcontext()

    def idle(self, batch: Batch) -> None:
        """Do nothing: a rank without samples contributes gradients with weight zero."""

    def undo(self) -> None:
        """Restore the buffers to their values before the step."""
        self.together.undo()

    def rebase(self) -> None:
        """Take the present buffers as the base of further changes."""
        self.together.rebase()

    def agree(self, finite: bool) -> bool:
        """Return whether the gradients of all ranks' shards are finite."""
        lacking = torch.tensor([int(not finite)], device=self.groups[0].device)
        self.site.collectives.all_reduce([lacking], MAX)
        return not int(lacking)

    def clip(self, limit: float) -> None:
        """Clip by the norm over all shards of all ranks in the optimizer, computed in float64."""
        members = {id(p) for group in self.site.optimizer.param_groups for p in group["params"]}
        own = [shard.values for shard in self.shards if id(shard.values) in members]
        gradients = [values.grad for values in own if values.grad is not None]
        squares = torch.zeros(1, dtype=torch.float64, device=self.groups[0].device)
        for gradient in gradients:
            squares += torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
        self.site.collectives.all_reduce([squares])
        factor = limit / (float(squares.sqrt()) + 1e-6)
        if factor < 1.0 or factor != factor:
            for gradient in gradients:
                gradient.mul_(factor)

    def _owned_gradients(self) -> Iterator[Stretch]:
        for shard in self.shards:
            yield shard.parameter, shard.values.grad, shard.start

    def end(self) -> None:
        """Gather the parameters that other ranks have updated."""
        self._torn = True  # a step that breaks here cannot be undone
        self._hand_out()
        self._torn = False

    def _hand_out(self) -> None:
        fetches, collectives = self._fetches(), self.site.collectives
        collectives.fence()
        for wait in [collectives.all_gather(flat[start:stop], flat, runs) for flat, start, stop, runs in fetches]:
            wait()

    def _fetches(self) -> list[tuple[Tensor, int, int, list[ShardRange]]]:
        """Return (flat tensor, start, stop, owners of its ranges) for each contiguous range to gather."""
        if not hasattr(self, "_stretches"):
            self._stretches = [entry for flat in self.site.state.tensors for entry in self._owned(flat)]
        return self._stretches

    def _owned(self, flat: Tensor) -> list[tuple[Tensor, int, int, list[ShardRange]]]:
        runs: list[ShardRange] = []
        for group in self.groups:
            if not group.trained or group.dtype != flat.dtype:
                continue
            for index, parameter in enumerate(group.parameters):
                offset = (parameter.data_ptr() - flat.data_ptr()) // flat.element_size()
                own = group.layout.runs(*group.layout.span(index))
                runs += [(owner, start + offset, stop + offset) for owner, start, stop in own]
        runs = _joined(runs)
        gaps = [k for k, (left, right) in enumerate(pairwise(runs), 1) if left[2] != right[1]]
        stretches = [runs[a:b] for a, b in pairwise([0, *gaps, len(runs)]) if a < b]
        return [(flat, each[0][1], each[-1][2], each) for each in stretches]

    def pieces(self) -> Iterator[StatePiece]:
        """Yield this rank's part of the state: its shards, and everything that is whole on all ranks."""
        names, state = {p: name for name, p in self.site.model.named_parameters()}, self.site.optimizer.state
        for group in self.groups:
            for parameter in () if group.shared_out else group.parameters:
                yield StatePiece(PARAMETERS, names[parameter], parameter.detach(), parameter.shape, shared=True)
        for shard in self.shards:
            name, shape = names[shard.parameter], self.shapes[shard.parameter]
            yield StatePiece(PARAMETERS, name, shard.values.detach(), shape, start=shard.start)
            for key, value in tensors_of(state.get(shard.values, {})):
                if value.shape == shard.values.shape and key != "step":
                    yield StatePiece(OPTIMIZER, name, value.detach(), shape, key, shard.start)
                elif not shard.start:  # a counter: every owner has the same one
                    yield StatePiece(OPTIMIZER, name, value.detach(), value.shape, key)
        yield from of_buffers(self.site.model, self.site.state, shared=True)

    def full_parameters(self) -> AbstractContextManager[None]:
        """Do nothing: between steps the parameters are whole."""
        return nullcontext()

    def reload(self) -> None:
        """Copy this rank's shards from whole parameters that were replaced; call between steps, inside of
        `full_parameters`."""

    @contextmanager
    def changeable_parameters(self) -> Iterator[None]:
        """Make the parameters whole between steps, and keep what the block changes: see `Zero`. Raises ExchangeBroken."""
        try:
            self.site.collectives.fence()  # no rank gathers the old values any more
            with self.full_parameters():
                yield
                self.reload()
        except ExchangeBroken:
            self._torn = True  # nobody knows which changes are kept
            raise

    def unwrap(self) -> None:
        """End the sharding: see `Zero`."""
        if self._unwrapped:
            return
        self._unwrapped = True
        self._let_go()
        if self._met:
            self.site.collectives.fence()  # no rank reads this memory any more
        self.site.state.lay()
        restore_optimizer(self.site.optimizer, self.before)
        disclaim(self.module)

    def _let_go(self) -> None:
        """Leave gradients where autograd puts them."""
        self.together.close()


def _joined(runs: list[ShardRange]) -> list[ShardRange]:
    """Join neighbouring ranges of the same owner."""
    joined: list[ShardRange] = []
    for owner, start, stop in runs:
        if joined and joined[-1][0] == owner and joined[-1][2] == start:
            joined[-1] = (owner, joined[-1][1], stop)
        else:
            joined.append((owner, start, stop))
    return joined


class Zero1(ShardedStep):
    """ZeRO stage 1: gradients are whole on every rank, as without sharding; each rank sums the part that it owns."""

    def __init__(self, site: ShardContext) -> None:
        super().__init__(site)
        self._sums = [(flat, self._runs(flat.dtype)) for flat in self.together.flats]

    def _runs(self, dtype: torch.dtype) -> list[ShardRange]:
        """Return the owners of the ranges of a flat tensor of gradients."""
        mine = [group for group in self.groups if group.trained and group.dtype == dtype]
        return [run for group in mine for run in group.layout.runs(0, group.layout.starts[-1])]

    def begin(self, batch: Batch) -> float:
        """Clear the gradients. Return 1, the factor on the loss: gradients are weighted when they are exchanged."""
        self.together.clear()
        self.meet()
        self.site.sketches.begin()
        return 1.0

    def exchange(self, batch: Batch) -> None:
        """Send gradients to their owners, and buffers and usage flags to all ranks."""
        gradients, site = self.together, self.site
        began = now()
        site.sketches.add(whole(site.state.parameters))
        site.sketches.exchange()
        gradients.pack(batch.samples / batch.total)
        site.meter.add("copy", began)
        for flat, runs in self._sums:
            if runs:
                site.collectives.reduce_scatter(flat[: runs[-1][2]], runs)
        site.collectives.all_reduce([flat[runs[-1][2] if runs else 0 :] for flat, runs in self._sums])
        meet_counters(batch, gradients, site.collectives)
        began = now()
        gradients.unpack()
        for shard in self.shards:
            gradient = shard.parameter.grad
            shard.values.grad = None if gradient is None else gradient.view(-1)[shard.start : shard.stop]
        site.sketches.end(batch.samples, batch.total, self._owned_gradients(), parts=True)
        site.meter.add("copy", began)
