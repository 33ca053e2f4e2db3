"""What PyTorch's own backends have in common: a process group, a step whose collectives hide inside it, one whole model.

They train the same data in the same order and with the same weights as the engine's own: PyTorch divides by the number of
ranks, so the loss of a slice is scaled by its samples x ranks / samples of all. A rank with an empty slice passes samples
of weight zero through the model, because every rank has to call the same collectives. Over gloo on CPUs; over NCCL where
every rank has a GPU."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ddp.backends.base import GroupBackend, RankContext
from ddp.backends.peer_module import PeerModule
from ddp.comm.transports.base import ExchangeBroken
from ddp.comm.transports.gloo import limit_collectives
from ddp.comm.transports.nccl import own_gpu
from ddp.core.errors import EngineError
from ddp.core.messages.commands import Join
from ddp.core.samples.spans import Batch
from ddp.process.clock import now
from ddp.replica import sparse
from ddp.replica.evidence.step_sketches import NoSketches, whole
from ddp.replica.optim.optimizers import members
from ddp.replica.scalars import Scalars
from ddp.replica.task import Job, Task

if TYPE_CHECKING:
    from ddp.replica.replica import Replica

BEATS = 3
"""Most signs of life in one step, a fifth of the deadline apart. The forward and backward passes contain collectives here,
besides user code: a rank that takes longer in them counts as silent, as with other backends."""
IDLE = 2
"""Samples of weight zero in an empty slice: batch norm needs more than one."""


class TorchBackend(GroupBackend):
    """A rank's side. Each backend defines its `step_type`."""

    step_type: type[TorchStep]

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        library = "nccl" if own_gpu(loop.device, job.host_ranks or job.world_size) else "gloo"
        if job.transport not in ("auto", library):
            raise ValueError(f"cluster.transport={job.transport}: PyTorch's engines use {library} here; use auto")
        super().__init__(replace(job, transport=library), rank, loop)
        if loop.device.type == "cuda" or not self.step_type.takes_sparse:
            sparse.refuse(sparse.declared(loop.replica.model), job.backend)
        self._joined = False
        self.steps: TorchStep | None = None

    def join(self, order: Join) -> None:
        """Join the other ranks, once. Raises EngineError the second time, as then a collective has broken."""
        if self._joined:
            time.sleep(1.0)  # if a rank is gone, the coordinator must hear of that first
            raise EngineError("a collective of PyTorch's broke though every rank is there; it cannot be taken up again")
        self._joined = True
        super().join(order)
        if dist.is_initialized():  # else the first collective raises
            limit_collectives(timedelta(seconds=self.job.deadline_s))

    def gradient_sync(self, replica: Replica) -> TorchStep:
        """Create and return the step."""
        self.steps = self.step_type(replica, self.job, self.loop)
        return self.steps

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Assemble the whole model now, not when the context is entered: only now are all ranks at the same point."""
        return self._assembled().averaged_weights()

    def finish(self) -> None:
        """Assemble the whole model in the replica."""
        self._assembled().finish()

    def _assembled(self) -> TorchStep:
        assert self.steps is not None, "nothing was trained"
        began = now()
        with self.loop.heart, torch.no_grad():
            self.steps.assemble()
        self.loop.meter.add("copy", began)
        return self.steps


class TorchStep:
    """One rank's part in a step. PyTorch's wrapper is built at the first step."""

    takes_sparse = True
    """Whether it exchanges sparse gradients of layers that declare them, over gloo; over NCCL no backend does."""
    waits_behind = True
    """Whether it waits for other ranks only at the end of the backward pass."""
    averages_all = False
    """Whether every gradient is averaged whole on every rank in every step, so that sketches before and after can be
    compared."""

    def __init__(self, replica: Replica, job: Job, loop: RankContext) -> None:
        self.replica, self.size, self.device = replica, job.world_size, loop.device
        self.module: nn.Module = replica.model
        self.unmoved: Sequence[Tensor] = replica.unmoved
        """Parameters that the optimizer does not have: their gradients must be cleared here."""
        self._heart, self._built, self._inside = loop.heart.limited(BEATS), False, False
        self._backend, self._accumulate = job.backend, job.step.accumulate
        self._watch = sparse.Watch(job.backend)
        self._sketches = replica.step_sketches if self.averages_all else NoSketches()
        self._hooks: list[Any] = []
        self._managed: list[tuple[str, nn.Parameter]] = []
        """Parameters that must get a gradient in every step."""
        self.slowdown, self._marked = loop.slowdown, False
        self._queued = True

    def build(self) -> None:
        """Wrap the replica's model in `module`, and its optimizer if need be. A collective of all ranks."""
        raise NotImplementedError

    def refuse_hooks(self) -> None:
        """Raise ValueError if the user's optimizer has hooks on its steps, or a step of its own: they would change nothing,
        as others are stepped, or other tensors."""
        for part in members(self.replica.optimizer):
            hooks = {*getattr(part, "_optimizer_step_pre_hooks", ()), *getattr(part, "_optimizer_step_post_hooks", ())}
            if hooks - self.replica.figures.hooks or "step" in vars(part):
                raise ValueError(
                    f"{type(part).__name__} has a hook on its step, which would have no effect in {self._backend}: take "
                    "another mode (zero1, zero2, torch_ddp and nccl_sync take it)"
                )

    def meet(self) -> None:
        """Raise ExchangeBroken if there is no group to build the wrapper for."""
        if not dist.is_initialized():
            raise ExchangeBroken("there is no group")

    def begin(self, batch: Batch) -> float:
        """Clear the gradients; return the loss factor that corrects PyTorch's division by the number of ranks, which
        ignores how many samples each has."""
        self._heart.__enter__()
        self._inside = True
        if not self._built:
            self.meet()
            self.build()
            self._built = True
            self._managed = managed(self.module, self.replica.state.named)
            self.watch()
        self.replica.optimizer.zero_grad(set_to_none=True)
        for parameter in self.unmoved:
            parameter.grad = None
        self._sketches.begin()
        factor = batch.samples * self.size / batch.total
        for parameter in self.replica.state.parameters if self._sketches.drawn else ():
            self._hooks.append(parameter.register_hook(partial(self._sketch, parameter, factor or 1.0)))  # type: ignore[no-untyped-call]
        return factor

    def _sketch(self, parameter: Tensor, factor: float, gradient: Tensor) -> None:
        """Add a gradient to the sketch before PyTorch averages it."""
        self._sketches.add([(parameter, gradient / factor, 0)])

    def backward(self) -> None:
        """Leave the exchange to PyTorch's hooks; on an emulated slow rank, arrange to mark where its own work ends."""
        if not self.slowdown.slow or not self.waits_behind:
            return
        self._queued = False
        if not self._marked:
            self._marked = True
            for parameter in self.replica.state.parameters:
                if parameter.requires_grad:
                    parameter.register_hook(self._mark)  # type: ignore[no-untyped-call]

    def _mark(self, gradient: Tensor) -> None:
        """Mark when all gradients are computed. This callback is queued before PyTorch's own, which waits for the buckets
        in flight."""
        if not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.slowdown.computed)

    def one_pass(self, last: bool) -> AbstractContextManager[None]:
        """Return a context in which PyTorch exchanges gradients only if this is the last pass."""
        return nullcontext() if last else self.module.no_sync()  # type: ignore[operator]

    def idle(self, batch: Batch) -> None:
        """Run a forward and backward pass with weight zero."""
        with Scalars(), self.replica.passes.autocast():
            loss = self.replica.task.loss(self.module, self.replica.some(IDLE))
        (loss * 0.0).backward()  # type: ignore[no-untyped-call]

    def watch(self) -> None:
        """Check gradients before PyTorch does: it must be told of sparse ones, and knows only those that a layer
        declares."""
        known = set(sparse.declared(self.replica.model))
        self._watch.add((name, parameter) for name, parameter in self.replica.state.named if name not in known)

    def exchange(self, batch: Batch) -> None:
        """Finish the step's exchange, which happened in the backward pass. Raises ValueError for parameters without
        gradients, and for those that were unfrozen meanwhile."""
        self.replica.state.check_frozen()
        refuse_unused(self._managed, self._backend)
        self._watch.rest()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._sketches.exchange(buffers=False)
        self._sketches.end(batch.samples, batch.total, whole(self.replica.state.parameters))

    def agree(self, finite: bool) -> bool:
        """Return `finite`: every rank has all gradients."""
        return finite

    def clip(self, limit: float) -> None:
        """Clip the optimizer's parameters with PyTorch's function."""
        torch.nn.utils.clip_grad_norm_(parameters_of(self.replica.optimizer), limit)

    def end(self) -> None:
        """End the heartbeat of this step."""
        self._leave()

    def undo(self) -> None:
        """End the heartbeat of this step; undo nothing, as a run that lost a rank ends."""
        self._leave()

    def _leave(self) -> None:
        if self._inside:
            self._inside = False
            self._heart.__exit__(None, None, None)

    def assemble(self) -> None:
        """Assemble the values of the whole model in the replica. A collective of all ranks."""
        self.replica.state.gather()
        for section in self.replica.state.sections:
            if section.kind == "buffers":
                dist.broadcast(section.values.view(torch.uint8), 0)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Do nothing: the replica keeps the assembled values, as no step depends on its own."""
        return nullcontext()

    def finish(self) -> None:
        """Do nothing: the replica keeps the assembled values."""

    def wrapped(self) -> nn.parallel.DistributedDataParallel:
        """Return the replica's model wrapped in DistributedDataParallel."""
        places = [self.device] if self.device.type == "cuda" else None
        settings = ddp_settings(self.replica.model, self.replica.task, self._accumulate)
        return PeerModule(self.replica.model, device_ids=places, **settings)


def ddp_settings(model: nn.Module, task: Task, accumulate: int = 1) -> dict[str, Any]:
    """Return the arguments that an expert would give DistributedDataParallel for speed.

    A static graph cannot begin with a pass that exchanges nothing, such as the first of several micro-batches.

    Running statistics of batch norm need no broadcast before each step: training does not read them, rank 0's depend on its
    own batches alone, and `TorchStep.assemble` broadcasts them before they are read."""
    buffers = [m for m in model.modules() if m._buffers and any(b is not None for b in m._buffers.values())]
    read = any(not isinstance(module, _NormBase) for module in buffers)
    known = inspect.signature(nn.parallel.DistributedDataParallel).parameters
    name = (
        "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    )  # the name in older versions
    return {"gradient_as_bucket_view": True, "static_graph": task.static_graph and accumulate == 1, name: read}


def managed(module: nn.Module, named: Iterable[tuple[str, nn.Parameter]]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that DistributedDataParallel waits for in every step."""
    if not isinstance(module, nn.parallel.DistributedDataParallel) or module.static_graph:
        return []
    return [(name, p) for name, p in named if p.requires_grad and name not in module.parameters_to_ignore]


def refuse_unused(named: Iterable[tuple[str, nn.Parameter]], backend: str) -> None:
    """Raise ValueError that names the parameters without a gradient after a backward pass."""
    unused = [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]
    if unused:
        raise ValueError(
            f"the loss does not depend on {', '.join(unused[:3])}{', ...' if unused[3:] else ''} in this step, which "
            f"{backend} does not take (find_unused_parameters, which slows every step, is off): freeze what is never used "
            "(requires_grad=False), or take another mode (nccl_sync and zero1 take it)"
        )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return all parameters of the optimizer, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
