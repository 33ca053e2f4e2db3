"""Measures a rank's steps beyond their time: gradient norms, memory by kind, FLOP and tokens per sample.

Samples a few steps only and changes nothing. Knows nothing of other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from ddp.core.messages.event_parts import StepWork
from ddp.core.values.frozen import finite
from ddp.replica.optim.optimizers import members
from ddp.replica.task import Job, Tensors

NORMS = 50
"""About how many steps of a run have their gradient norm measured: a norm costs a small model a tenth of a step."""


class StepFigures:
    """The measurements of one rank."""

    def __init__(self, job: Job, model: nn.Module, optimizer: Any, steps: int) -> None:
        self._model, self._apart = model, max(steps // NORMS, 1)
        self._counts = job.profile_steps > 0 and not job.step.compile
        """Whether to count the FLOP of the first pass, which is slow."""
        self._step = self._next = 0
        self._norms: list[tuple[int, float | None]] = []
        self._bytes = [0, 0, 0]
        """Bytes of parameters, gradients and optimizer state."""
        self._flop: float | None = None
        self._kept: int | None = None
        self._tokens: int | None = None
        self._updates: list[int] = []
        """Steps counted so far, for each wrapped optimizer."""
        self._hooks: list[RemovableHandle] = []
        self._inside: list[int] = []
        """Nesting depth of `step` calls under way, for each wrapped optimizer."""
        self.count_updates(optimizer)

    def count_updates(self, optimizer: Any) -> None:
        """Count the steps of an optimizer (of each one in a group of several) from now on. Optimizers that are not
        PyTorch's have no hooks and are not counted."""
        for hook in self._hooks:
            hook.remove()
        self._updates, self._hooks, self._inside = [], [], []
        for part in members(optimizer):
            own = getattr(part, "optim", part)  # unwrap PyTorch's wrappers
            if isinstance(own, torch.optim.Optimizer):
                place = len(self._updates)
                self._hooks.append(own.register_step_pre_hook(partial(self._updating, place)))
                self._hooks.append(own.register_step_post_hook(partial(self._updated, place)))
                self._updates.append(0)
                self._inside.append(0)

    @property
    def hooks(self) -> frozenset[int]:
        """Return the ids of its own hooks on steps of the optimizer."""
        return frozenset(hook.id for hook in self._hooks)

    def _updating(self, place: int, *_: Any) -> None:
        self._inside[place] += 1

    def _updated(self, place: int, *_: Any) -> None:
        # PyTorch runs the hooks once for the user's subclass and once more for its base class.
        self._inside[place] -= 1
        self._updates[place] += self._inside[place] == 0

    def counting(self, tensors: Tensors, samples: int) -> AbstractContextManager[None]:
        """Return the context for the forward and backward pass on `samples`; it counts the first pass if that is wanted."""
        if self._tokens is None:
            first = tensors[0] if isinstance(tensors, (tuple, list)) and tensors else None
            embedded = any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in self._model.modules())
            text = isinstance(first, Tensor) and first.dim() == 2 and not first.is_floating_point()
            self._tokens = first.shape[1] if embedded and text and isinstance(first, Tensor) else 0
        if not self._counts:
            return nullcontext()
        self._counts = False
        return self._counted(tensors, samples)

    @contextmanager
    def _counted(self, tensors: Tensors, samples: int) -> Iterator[None]:
        from torch.utils._pytree import tree_leaves
        from torch.utils.flop_counter import FlopCounterMode

        from ddp.replica.recurrent_flop import FUSED

        # Memory of the batch, parameters and buffers outlives this pass: it does not count as activations.
        lasting = chain(self._model.parameters(), self._model.buffers(), tree_leaves(tensors))
        own = {each.untyped_storage().data_ptr() for each in lasting if has_storage(each)}
        kept: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            if has_storage(tensor) and (place := tensor.untyped_storage().data_ptr()) not in own:
                kept[place] = tensor.untyped_storage().nbytes()
            return tensor

        counter = FlopCounterMode(display=False, custom_mapping=FUSED)
        with counter, saved_tensors_hooks(note, lambda tensor: tensor):
            yield
        self._flop, self._kept = counter.get_total_flops() / samples, sum(kept.values())

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure a step, if its turn has come, after its gradients are complete and before they are clipped."""
        self._step += 1
        if self._step <= self._next:
            return
        self._next = self._step - 1 + self._apart
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._norms.append((self._step - 1, _norm(gradients)))
        if len(self._norms) <= 2:  # the optimizer has its state only from the second one on
            with torch._C.DisableTorchFunctionSubclass():  # subclasses (FSDP) may keep their values elsewhere
                self._bytes = _bytes(self._model, optimizer, gradients)

    def work(self) -> StepWork:
        """Return the measurements."""
        parameters, gradients, state = self._bytes
        # Of several optimizers, report the one whose count differs most from the number of steps.
        updates = max(self._updates, key=lambda count: abs(count - self._step), default=None)
        return StepWork(tuple(self._norms), parameters, gradients, state, self._kept, self._flop, self._tokens, updates)


def _local(tensor: Any) -> Tensor:
    """Return this rank's local part of a tensor (values alone of a sparse one)."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.coalesce().values() if local.is_sparse else local


@torch.no_grad()
def _norm(gradients: Iterable[Tensor]) -> float | None:
    locals_ = [values for gradient in gradients if (values := _local(gradient)).numel()]
    return finite(float(nn.utils.get_total_norm(locals_))) if locals_ else 0.0


def _bytes(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: Iterable[Tensor]) -> list[int]:
    """Return the bytes that parameters, their gradients and the optimizer's state take on this rank, shards included."""
    own = list(model.parameters())
    shards = (_local(p) for group in optimizer.param_groups for p in group["params"])
    parameters = _held(chain(own, shards))
    gradient_bytes = _held(chain((p.grad for p in own if p.grad is not None), gradients))
    states = (optimizer.state or getattr(optimizer, "optim", optimizer).state).values()  # a sharding wrapper's own part
    kept = (value for state in states for value in state.values() if isinstance(value, Tensor))
    return [parameters, gradient_bytes, _held(kept)]


def _held(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors, counting overlapping memory once."""
    stretches: dict[int, dict[int, int]] = {}
    for tensor in map(_local, tensors):
        storage = tensor.untyped_storage()
        start = int(tensor.storage_offset()) * tensor.element_size()
        stop = min(start + tensor.nbytes, storage.nbytes())
        ends = stretches.setdefault(storage.data_ptr(), {})
        ends[start] = max(ends.get(start, 0), stop)
    total = 0
    for ends in stretches.values():
        reached = 0
        for start, stop in sorted(ends.items()):
            total += max(stop - max(start, reached), 0)
            reached = max(reached, stop)
    return total


def has_storage(value: object) -> bool:
    """Return whether `value` is a dense tensor: a sparse one has no storage of its own."""
    return isinstance(value, Tensor) and value.layout is torch.strided
