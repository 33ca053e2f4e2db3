"""Measures the peak memory of a rank's tensors by kind, on the live tensors.

    watch = TensorWatch(lambda: kinds(model, optimizer, sharded))
    with watch:
        ...                     # steps
    watch.peak                  # bytes by kind, at the moment when parameters, gradients and optimizer state took most
    watch.most                  # most bytes of all tensors at any moment

A storage is counted once, however many tensors share it, and as long as anything holds it, including activations that
only the graph of the backward pass holds. Memory that ranks share (`transports.memory`) counts for its owner.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from ddp.sharding.units import ShardedParameter
from ddp.sharding.zero1 import ShardedStep, Zero1
from ddp.sharding.zero2 import Zero2
from ddp.sharding.zero3 import Zero3

STATE = ("parameters", "gradients", "optimizer")
Kinds = dict[str, list[Tensor]]


def kinds(model: nn.Module, optimizer: torch.optim.Optimizer, sharded: ShardedStep | None = None) -> Kinds:
    """The tensors of each of `STATE` that there are now, of a rank that shards or of one that does not."""
    own = list(model.parameters())
    parameters: list[Tensor] = [p for p in own if not isinstance(p, ShardedParameter)]
    gradients = [p.grad for p in own if p.grad is not None]
    if sharded is not None:
        parameters += [shard.values for shard in sharded.shards]
        gradients += [shard.values.grad for shard in sharded.shards if shard.values.grad is not None]
    if isinstance(sharded, Zero1):
        gradients += sharded.together.flats
    if isinstance(sharded, Zero2):
        gradients += sharded.gradients.alive()
    if isinstance(sharded, Zero3):
        parameters += sharded.gathered()
    state = [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    return {"parameters": parameters, "gradients": gradients, "optimizer": state}


def sizes(found: Kinds) -> dict[str, int]:
    """Bytes of each kind; memory that serves two counts for the first."""
    seen: set[int] = set()
    total = dict.fromkeys(found, 0)
    for kind, tensors in found.items():
        for storage in (tensor.untyped_storage() for tensor in tensors):
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total[kind] += storage.nbytes()
    return total


class TensorWatch(TorchDispatchMode):
    """Follows every tensor that is made in this thread while it is entered; those of `kinds` are known from before."""

    def __init__(self, kinds: Callable[[], Kinds]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kinds = kinds
        self.looking = True
        """Whether what lives is compared with the most that there was; it is followed either way."""
        self._live: dict[int, tuple[int, Any]] = {}
        self.peak: dict[str, int] = dict.fromkeys(STATE, 0)
        """Bytes of each kind when they took most together."""
        self.most = self.activations = 0
        """Most bytes of all tensors at any moment; and most of those that are of none of `STATE`: activations, buffers where
        they lie apart, batches, and what an operation needs for itself."""
        for tensors in kinds().values():
            self._follow(tensors)

    def _follow(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, (list, tuple)):
                self._follow(value)
            elif is_traceable_wrapper_subclass(value):  # DTensor: what it holds is seen
                self._follow(getattr(value, name) for name in value.__tensor_flatten__()[0])
            elif isinstance(value, Tensor):
                storage = value.untyped_storage()
                address, size = storage.data_ptr(), storage.nbytes()
                # Memory in files is lent between ranks; what of it is this rank's own is among the kinds.
                if address and address not in self._live and storage.filename is None:
                    gone = weakref.finalize(storage, self._live.pop, address, None)
                    gone.atexit = False
                    self._live[address] = size, gone

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Act, and look what there is. Also where nothing was made: what was may have become a gradient since."""
        out = func(*args, **(kwargs or {}))
        self._follow([out])
        if self.looking:
            self.look()
        return out

    def look(self) -> None:
        """Compare what lives now with the most that there was."""
        found = self._kinds()
        state = sizes(found)
        held = sum(state.values())
        theirs = {tensor.untyped_storage().data_ptr() for tensors in found.values() for tensor in tensors}
        rest = sum(size for address, (size, _) in list(self._live.items()) if address not in theirs)
        if held > sum(self.peak.values()):
            self.peak = state
        self.most = max(self.most, held + rest)
        self.activations = max(self.activations, rest)
