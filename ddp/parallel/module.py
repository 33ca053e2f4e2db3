"""Own `DistributedDataParallel`: torch's interface with buckets and transports of this package. Knows no coordinator."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.autograd.variable import Variable

from ddp.gradients.buckets import BUCKET_BYTES, FIRST_BYTES
from ddp.parallel.group import Group, current
from ddp.parallel.no_sync import NoSyncState
from ddp.parallel.reducer import BucketReducer
from ddp.parallel.startup_check import ParameterGuard, agree, claim, release

WIRES = {None: None, "bfloat16": torch.bfloat16}
UNUSED: dict[str, tuple[Any, str]] = {
    "dim": (0, "each rank gives its own batch"),
    "check_reduction": (False, "leave it out"),
    "mixed_precision": (None, "write torch.autocast around the forward pass"),
    "device_mesh": (None, "give process_group, or leave it out"),
    "delay_all_reduce_named_params": (None, "leave it out"),
    "param_to_hook_all_reduce": (None, "leave it out"),
    "skip_all_reduce_unused_params": (False, "leave it out"),
}
"""Arguments of torch's class for which only the default is accepted -> (default, what to do instead)."""


class DistributedDataParallel(nn.Module):
    """Train `module` on every rank with the gradients of all ranks: a drop-in for torch's class of the same name.

    Every backward pass that sends gradients leaves in `.grad` their average over ranks, with the same bits on all ranks. A
    parameter that a rank did not use counts as a zero gradient of that rank; a parameter that no rank used has no gradient.
    As in torch's class, a backward pass sends if its forward pass was outside `no_sync()`.

    Args:
        module: the model, the same on all ranks.
        broadcast_buffers: send rank 0's buffers before a forward pass, in evaluation too, if the previous forward pass had
            gradients enabled and was outside `no_sync()`.
        init_sync: set the parameters and buffers of all ranks to those of rank 0 now.
        process_group: the result of `ddp.init`; None: the group of this process.
        bucket_cap_mb: size of a bucket in MiB: a number, or one for each bucket, of which the last applies to all further
            buckets; None: 1, then 25.
        average: False: `.grad` is the sum over ranks instead of the average.
        compression: "bfloat16" halves the bytes that are sent (shared memory sums in float32). Not in torch's class.
        overlap: False: send gradients and buffers only in `sync_gradients()`. Not in torch's class.
        device_ids, output_device, find_unused_parameters, gradient_as_bucket_view, static_graph: no effect. Unused
            parameters are always found, and gradients are always views of the buckets.

    `docs/reference/distributed.md` lists the other differences from torch's class.

    Raises ValueError for a model that is wrapped already or differs between ranks (with rank and parameter), RankLost for a
    rank that does not come. A backward pass that sends gradients raises ValueError if replicas have diverged, because an
    optimizer stepped on gradients of one rank alone.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: object = None,
        output_device: object = None,
        *,
        broadcast_buffers: bool = True,
        init_sync: bool = True,
        process_group: Group | None = None,
        bucket_cap_mb: float | Sequence[float] | None = None,
        find_unused_parameters: bool = True,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        average: bool = True,
        compression: str | None = None,
        overlap: bool = True,
        **torchs: Any,
    ) -> None:
        super().__init__()
        _refuse(torchs)
        if compression not in WIRES:
            raise ValueError(f"compression must be None or 'bfloat16', not {compression!r}")
        if process_group is not None and not isinstance(process_group, Group):
            raise ValueError("process_group must be what ddp.init returned; torch's default group is found by itself")
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise ValueError("no parameter of this model is trained: there is nothing to average")
        caps = _bytes(bucket_cap_mb)
        self._group = process_group or current()
        self._refuse_other_devices(named)
        settings = {"average": average, "buckets in bytes": caps, "compression": compression}
        claim([module], self)
        try:
            agree(self._group, [module], settings | {"overlap": overlap, "broadcast_buffers": broadcast_buffers})
            self._reducer = BucketReducer(self._group, named, caps, average, WIRES[compression])
        except BaseException:
            release([module], self)
            raise
        self.module, self._guard = module, ParameterGuard(module)
        self._average, self._overlap, self._share_buffers = average, overlap, broadcast_buffers
        self._no_sync = NoSyncState()
        self._buffers_due = True
        """Whether the next forward pass first broadcasts rank 0's buffers."""
        self._pass: weakref.ref[Callable[[], None]] | None = None
        """Callback of the running backward pass. The reference is dead if that pass was interrupted."""
        self._weighed = False
        """Whether the previous pass was weighted by samples, and no forward pass followed it."""
        self._settled = True
        """Whether all gradients are averages over all ranks."""
        if init_sync:
            self.sync_parameters()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(
                _weak(self, lambda wrapper, index: wrapper._came(index), index)
            )  # type: ignore[no-untyped-call]
            for index, (_, parameter) in enumerate(named)
        ]
        if not average:
            # Prehooks run before autograd accumulates into `.grad`. Nodes must be kept alive.
            self._nodes = [get_gradient_edge(parameter).node for _, parameter in named]
            begin = _weak(self, lambda wrapper, _: wrapper._reducer.add_to_sums(), 0)
            self._hooks += [node.register_prehook(begin) for node in self._nodes]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a DistributedDataParallel belongs to its ranks and can be neither pickled nor copied: take its .module"
        )

    def _refuse_other_devices(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        for name, parameter in named:
            if parameter.device != self._group.device and parameter.device.type != self._group.device.type:
                raise ValueError(
                    f"parameter {name} is on {parameter.device}, the group on {self._group.device}: move the model there "
                    "first, or make the group with ddp.init(device=...)"
                )

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call `module`. Raises ValueError for a parameter that was added, replaced or unfrozen after the module was
        wrapped."""
        if torch.is_grad_enabled():
            self._guard.check()
            self._break_off()
            self._settled = self._weighed = False
            self._no_sync.forward()
        if self._overlap:
            self._align_buffers(again=torch.is_grad_enabled() and self._no_sync.wanted)
        return self.module(*inputs, **named)

    def _align_buffers(self, again: bool) -> None:
        """Broadcast rank 0's buffers if they are due. `again`: they will be due before the next forward pass too."""
        if self._share_buffers and self._buffers_due:
            self.sync_buffers()
        self._buffers_due = again

    def _came(self, index: int) -> None:
        """Send or keep the gradient of one parameter, which this backward pass has completed. Called by the parameter's
        hook."""
        self._settled = False
        self._reducer.enabled = self._overlap and self._no_sync.now
        if self._reducer.enabled and (self._pass is None or self._pass() is None):
            self._break_off()
            self._begin()
        self._reducer.touch(index)

    def _begin(self) -> None:
        """Begin a backward pass."""
        if self._weighed and self._reducer.samples is None:
            raise ValueError(
                "a second backward pass after one that samples were said for (set_samples), without a forward pass between: "
                "it would not be weighed; say them before each, or do the passes inside no_sync() and call "
                "sync_gradients(samples) after (checkpointing with use_reentrant=True makes several of one: take False)"
            )

        def over() -> None:  # only the pass keeps a reference to it
            self._finish()

        self._pass = weakref.ref(over)
        Variable._execution_engine.queue_callback(over)

    def _break_off(self) -> None:
        """Discard a backward pass that was interrupted."""
        if self._pass is not None:
            self._pass = None
            self._reducer.abandon()

    def _finish(self) -> None:
        """End the backward pass."""
        self._pass, self._weighed = None, self._reducer.samples is not None
        self._no_sync.sent()
        self._reducer.finish()
        self._settled = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of forward passes in this block on this rank, wherever their backward passes are. The next
        forward and backward pass outside the block sends the accumulated sum."""
        before, self._no_sync.wanted = self._no_sync.wanted, False
        try:
            yield
        finally:
            self._no_sync.wanted = before

    @property
    def require_backward_grad_sync(self) -> bool:
        """Return False inside `no_sync()`. The name is torch's; some loops that accumulate gradients set it."""
        return self._no_sync.wanted

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        self._no_sync.wanted = bool(wanted)

    def set_samples(self, samples: int) -> None:
        """Set the size of this rank's batch for the next backward pass. Gradients are then averaged over samples, so
        batches may have different sizes. Either all ranks call it or none. Raise ValueError for sums, and for a size
        below 0."""
        if not self._average:
            raise ValueError("samples weigh in an average; this model sums (average=False)")
        if not (math.isfinite(samples) and samples >= 0):
            raise ValueError(f"samples must be finite, 0 or more, not {samples}")
        self._reducer.samples = samples

    def sync_gradients(self, samples: int | None = None) -> None:
        """Send all gradients now, and wait for the result. Does nothing if the backward pass has sent them already.

        `samples`: as in `set_samples`. A rank that has no batch while others have one calls this with 0, instead of its
        forward and backward pass. Raises RankLost.
        """
        if samples is not None:
            self.set_samples(samples)
            if samples == 0 and self._overlap:
                self._align_buffers(again=True)  # as other ranks do in their forward pass
        elif self._settled:
            return
        self._reducer.finish()
        self._settled, self._weighed, self._buffers_due = True, False, True
        if self._share_buffers and self.training and not self._overlap:
            self.sync_buffers()

    def sync_parameters(self) -> None:
        """Set the parameters and buffers of all ranks to those of rank 0."""
        self._group.broadcast([p.detach() for p in self.module.parameters()])
        self._reducer.moved.forget()
        self.sync_buffers()

    def sync_buffers(self) -> None:
        """Set the buffers of all ranks to those of rank 0."""
        self._group.broadcast(list(self.module.buffers()))

    def close(self) -> None:
        """Remove all hooks from the module: its gradients are no longer averaged."""
        for hook in self._hooks:
            hook.remove()
        self._reducer.release()
        release([self.module], self)


def _refuse(torchs: dict[str, Any]) -> None:
    """Raise ValueError for arguments of torch's class that have no meaning here, TypeError for unknown arguments."""
    for name, value in torchs.items():
        if name not in UNUSED:
            raise TypeError(f"DistributedDataParallel has no argument {name}")
        usual, remedy = UNUSED[name]
        if value is not usual and value != usual:
            raise ValueError(f"{name}={value!r:.60} of torch's class has no meaning here: {remedy}")


def _bytes(caps: float | Sequence[float] | None) -> list[int]:
    """Return bucket sizes in bytes; `caps` are in MiB."""
    if caps is None:
        return [FIRST_BYTES, BUCKET_BYTES]
    return [int(cap * 2**20) for cap in ([caps] if isinstance(caps, (int, float)) else caps)]


def _weak(
    owner: DistributedDataParallel, act: Callable[[DistributedDataParallel, int], None], index: int
) -> Callable[[object], None]:
    """Return a hook that calls `act`. It holds the wrapper by a weak reference, because hooks live as long as their
    parameter."""
    reference = weakref.ref(owner)

    def hook(_: object) -> None:
        wrapper = reference()
        if wrapper is not None:
            act(wrapper, index)

    return hook
