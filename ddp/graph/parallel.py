"""Runs a forward pass on all replicas, with its backward pass, as a single node of the caller's autograd graph.

Owns the connection between the caller's autograd graph and those of the replicas. Must not keep the replicas alive between
forward and backward. In the forward pass, every replica runs its batches; outputs and tagged values are gathered on one
device. In the backward pass, the gradient of the gathered outputs is divided, and each replica runs it back through its
batches in order. `Tensor.backward` fills the gradients of the parameters; `torch.autograd.grad` and `backward(inputs=...)`,
which ask for certain tensors only, do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ddp.graph.scatter import gather, leaves, rebuild, share
from ddp.graph.serialized_rng import SerializedRng

Run = Callable[[int, tuple[Any, ...], int], Any]
"""(rank, inputs, index of the batch on this rank) -> output of that rank's replica."""


class Everywhere(Protocol):
    """Runs a function for every rank and records its time as a slice of `kind`. The ranks in `here` run on the calling
    thread."""

    def __call__(self, kind: str, work: Sequence[Callable[[], Any]], here: Collection[int] = ()) -> list[Any]: ...


@dataclass
class ReplicaBatch:
    """A batch of one replica, and its output."""

    inputs: tuple[Any, ...]
    samples: int
    value: Any = None
    local: tuple[Any, ...] = ()
    """The inputs on the replica's device, detached from the caller's autograd graph."""


@dataclass
class Pass:
    """One forward and backward pass over all replicas; `batches` are by rank."""

    batches: Sequence[Sequence[ReplicaBatch]]
    devices: Sequence[torch.device]
    run: Run | None
    """Runs a replica. Set to None after use, because it keeps the replicas alive."""
    everywhere: Everywhere
    turns: SerializedRng
    counted: Callable[[], None] = lambda: None
    """Called at the start of the backward pass."""
    own: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the replicas run."""
    _spent: bool = field(default=False, init=False)

    @property
    def flat(self) -> list[ReplicaBatch]:
        """Return all batches, those of rank 0 first, which is the order of the samples."""
        return [batch for mine in self.batches for batch in mine]

    def __call__(self) -> Any:
        """Return the gathered output. It requires grad if gradients are enabled."""
        inputs = [leaf for batch in self.flat for leaf in leaves(batch.inputs)]
        wanted = torch.is_grad_enabled()
        # Parameters are not inputs of the node: without this anchor, autograd might not call its backward.
        anchor = torch.zeros((), requires_grad=wanted)
        outputs = iter(_Node.apply(self, anchor, *inputs))
        return rebuild(self.flat[0].value, lambda _: next(outputs))

    def forward(self) -> list[Tensor]:
        """Run all replicas. Return the gathered tensors of the output."""
        run, self.run = self.run, None
        assert run is not None
        with self.own():
            self.everywhere("forward", [self._forward(rank, run) for rank in range(len(self.batches))])
        counts = [batch.samples for batch in self.flat]
        columns = zip(*(leaves(batch.value) for batch in self.flat), strict=True)
        return [gather([leaf.detach() for leaf in column], counts, self.devices[0]) for column in columns]

    def _forward(self, rank: int, run: Run) -> Callable[[], None]:
        def work() -> None:
            for number, batch in enumerate(self.batches[rank]):
                batch.local = rebuild(batch.inputs, lambda leaf: _cut_off(leaf, self.devices[rank]))
                batch.value = run(rank, batch.local, number)

        return work

    def backward(self, gradients: Sequence[Tensor | None], train: bool) -> list[Tensor | None]:
        """Run the gradients of the outputs back through all replicas. Return the gradients of the inputs. `train`: fill
        the gradients of the parameters too. Raise RuntimeError in a second backward pass."""
        if self._spent:
            raise RuntimeError(
                "a second backward pass through one forward pass of a distributed graph: add the losses up, and call "
                "backward once"
            )
        self._spent = True
        if train:
            self.counted()
        counts = [batch.samples for batch in self.flat]
        first = 0
        work = []
        for rank, mine in enumerate(self.batches):
            work.append(self._backward(rank, first, counts, gradients, train))
            first += len(mine)
        with self.own(), self.turns.kept():
            self.everywhere("backward", work, at_home(self.devices))
        reached = [leaf.grad for batch in self.flat for leaf in leaves(batch.local)]
        for batch in self.flat:
            batch.value, batch.local = None, ()
        return reached

    def _backward(
        self, rank: int, first: int, counts: list[int], gradients: Sequence[Tensor | None], train: bool
    ) -> Callable[[], None]:
        def work() -> None:
            for number, batch in enumerate(self.batches[rank]):
                ends = [
                    (leaf, share(gradient, counts, first + number, self.devices[rank]))
                    for leaf, gradient in zip(leaves(batch.value), gradients, strict=True)
                    if gradient is not None and leaf.requires_grad
                ]
                wanted = None if train else [leaf for leaf in leaves(batch.local) if leaf.requires_grad]
                if ends and wanted != []:
                    values, theirs = zip(*ends, strict=True)
                    with self.turns.back(self.devices[rank]):
                        torch.autograd.backward(values, theirs, inputs=wanted)

        return work


def at_home(devices: Sequence[torch.device]) -> list[int]:
    """Return the ranks whose backward passes must run on the thread of the node's backward pass.

    Autograd has one thread for each device other than the CPU. The node runs on the thread of the first device, where the
    outputs were gathered. A pass on this device from another thread would wait for that thread, which itself waits for the
    pass.
    """
    return [rank for rank, device in enumerate(devices) if device == devices[0] and device.type != "cpu"]


def _cut_off(leaf: Tensor, device: torch.device) -> Tensor:
    local = leaf.detach().to(device, non_blocking=True)
    return local.requires_grad_() if leaf.requires_grad and torch.is_grad_enabled() else local


def _reaches_anchor() -> bool:
    """Return whether the current backward pass reaches every leaf. It does not in `torch.autograd.grad` and
    `backward(inputs=...)`, which do not ask for the anchor's gradient."""
    anchor = torch._C._current_autograd_node().next_functions[0][0]
    assert anchor is not None
    return torch._C._will_engine_execute_node(anchor)


class _Node(torch.autograd.Function):
    """Autograd node: (pass, anchor, input tensors) -> output tensors."""

    @staticmethod
    def forward(ctx: Any, replicated: Pass, anchor: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.replicated, ctx.places = replicated, [leaf.device for leaf in inputs]
        ctx.set_materialize_grads(False)
        with torch.set_grad_enabled(anchor.requires_grad):
            outputs = replicated.forward()
        ctx.mark_non_differentiable(*(leaf for leaf in outputs if not (leaf.is_floating_point() or leaf.is_complex())))
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        reached = ctx.replicated.backward(gradients, _reaches_anchor())
        moved = [part.to(place) if part is not None else None for part, place in zip(reached, ctx.places, strict=True)]
        return (None, None, *moved)
