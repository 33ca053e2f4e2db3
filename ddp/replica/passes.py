"""Runs the forward and backward passes of a replica's steps, and cuts a step into micro-batches.

`StepSettings` configures it; the steps of every engine go through here. Knows neither data nor ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.random import fork_rng

from ddp.core.errors import OutOfResources
from ddp.core.samples.spans import Batch, Chunk, micro_batches
from ddp.replica.abilities import HALF, check_abilities
from ddp.replica.gradient_sync import GradientSync
from ddp.replica.memory.shared_gradients import separate
from ddp.replica.norms import least_samples
from ddp.replica.optim.loss_scale import LEAST, LossScale
from ddp.replica.scalars import Scalars
from ddp.replica.sparse import dense
from ddp.replica.task import Job, Task, Tensors

Marks = list[tuple[Tensor | None, int]]
"""(gradient of each parameter, its version counter)."""
COMPILER = "inductor"
"""Backend of `torch.compile`."""


class StepPasses:
    """The passes of one replica."""

    def __init__(self, job: Job, model: nn.Module, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        check_abilities(job.step, device)
        self._parameters, self._device = parameters, device
        self._model, self._compiled = model, job.step.compile
        if self._compiled:
            import torch._inductor.config as inductor  # importing it takes a second

            inductor.compile_threads = 1  # compile in this process: no worker processes beside the ranks
            inductor.fallback_random = True  # dropout draws the same numbers as without compilation
            # One compiled function for batches of nearly all sizes.
            model.compile(backend=COMPILER, dynamic=True)
        self._half = HALF.get(job.step.precision)
        self.scale = LossScale() if job.step.precision == "fp16" else None
        """None: no loss scaling is needed."""
        self._stepped = True
        """Whether the optimizer might step after the last passes."""
        self._most = job.batch_size // job.step.accumulate
        self._least = least_samples(model)
        self._single = job.step.accumulate == 1

    def cut(self, batch: Batch) -> Sequence[Batch]:
        """Return the micro-batches of this rank's part of a step. Ranks that share a step have equally many."""
        return (batch,) if self._single else micro_batches(batch, self._most, self._least)

    def cut_all(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the micro-batches of several steps, in order."""
        return batches if self._single else (part for batch in batches for part in self.cut(batch))

    @property
    def loss_scale(self) -> float:
        """The factor on the loss."""
        return 1.0 if self.scale is None else self.scale.value

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of a forward pass."""
        return nullcontext() if self._half is None else torch.autocast(self._device.type, self._half)

    def eager(self) -> AbstractContextManager[Any]:
        """Return the context to evaluate the model in, without compilation."""
        return torch.compiler.set_stance("force_eager") if self._compiled else nullcontext()

    def sizes(self, job: Job, samples: int) -> list[int]:
        """Return the sizes of passes in samples, in epochs of `samples`: the largest first, then the remainders at the
        end."""
        chunks = [Chunk(0, 0, samples, job.batch_size)]
        for part in range(job.world_size) if job.world_size > 1 else ():
            whole = job.batch_size * job.world_size
            chunks.append(Chunk(0, 0, samples, whole, part, job.world_size, least=self._least))
        batches = [chunk.at(step) for chunk in chunks for step in {0, chunk.steps - 1}]
        return sorted({part.samples for batch in batches for part in self.cut(batch)} - {0}, reverse=True)

    def warm_up(self, task: Task, some: Callable[[int], Tensors], sizes: Iterable[int]) -> None:
        """Compile ahead of training, by passes of these sizes on sample data (`some`) that leave the replica unchanged."""
        with torch.no_grad():
            before = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        with fork_rng(), Scalars():
            for size in sizes:
                backward(self.loss(task, self._model, some(size)))
        for parameter in self._parameters:
            parameter.grad = None
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)

    def loss(self, task: Task, module: nn.Module, tensors: Tensors) -> Tensor:
        """Return the loss on a micro-batch, in float32 at least. Raise OutOfResources where the processor cannot run the
        model in half precision, as with some recurrent layers."""
        if self._half is None:
            return task.loss(module, tensors)
        try:
            with self.autocast():
                loss = task.loss(module, tensors)
        except RuntimeError as error:
            if "could not create a primitive" not in str(error):
                raise
            line = str(error).partition(". ")[0]
            raise OutOfResources(
                f"no {self._half} for this model here ({line}): choose another train.precision"
            ) from error
        return loss.float() if loss.dtype.itemsize < 4 else loss

    def ready(self, optimizer: torch.optim.Optimizer, team: GradientSync | None) -> bool:
        """Divide the gradients by the loss scale; return whether the optimizer may step: not if they overflow, on any rank
        that holds a part of them."""
        if self.scale is None:
            return True
        moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        separate(moved)
        finite = self.scale.unscale(parameter.grad for parameter in moved if parameter.grad is not None)
        self._stepped = self.scale.follow(finite if team is None else team.agree(finite))
        return self._stepped

    def reported(self, loss: Tensor | None) -> Tensor | None:
        """Return the loss to report of a step; None if it is not finite and `ready` was False, as if it had no samples."""
        return loss if self._stepped or loss is None or bool(torch.isfinite(loss)) else None

    def overflows(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> bool:
        """Return whether a loss is not finite and, before the exchange, gradients of this replica are not either: `ready`
        will be False."""
        if self.scale is None or self.scale.value <= LEAST or bool(torch.isfinite(loss)):
            return False
        gradients = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
        return not all(bool(torch.isfinite(dense(each)).all()) for each in gradients if each is not None)

    def capture(self) -> dict[str, Any]:
        """Return the state that persists from one step to the next (the loss scale)."""
        return {} if self.scale is None else {"loss_scale": vars(self.scale)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `capture` returned."""
        if self.scale is not None:
            self.scale = LossScale(**state["loss_scale"])

    def marks(self) -> Marks:
        """Return the gradients and their versions before the loss of one of several micro-batches is computed."""
        gradients = [parameter.grad for parameter in self._parameters]
        return [(gradient, 0 if gradient is None else gradient._version) for gradient in gradients]

    def check(self, before: Marks) -> None:
        """Raise ValueError if the user's loss changed gradients: they hold the sum over the step's earlier
        micro-batches."""
        for (gradient, version), (own, now) in zip(before, self.marks(), strict=True):
            if own is not gradient or now != version:
                raise ValueError(
                    "the step makes or clears gradients itself, which accumulate would count wrongly: leave backward() "
                    "and zero_grad() to the engine, or leave accumulate out"
                )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a block with the model in evaluation mode. Every module gets its mode back by its own `train`, which may do more
    than set the mode: layers of LoRA merge weights there. The parameters in such modules keep their bits."""
    modes = [(module, module.training) for module in model.modules()]
    special = [module for module, _ in modes if type(module).train is not nn.Module.train]
    with torch.no_grad():
        kept = [(p, p.clone()) for p in dict.fromkeys(p for module in special for p in module.parameters())]
        model.eval()
    try:
        yield
    finally:
        with torch.no_grad():
            model.train()
            for module, mode in modes:  # a module comes before those inside it
                if module.training != mode:
                    module.train(mode)
            for parameter, values in kept:
                parameter.copy_(values)


def backward(loss: Tensor) -> None:
    """Run the backward pass of a loss. Raise ValueError if the step called `backward` itself, and as `refuse_changed`."""
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "backward through the graph a second time" in str(error):
            raise ValueError(
                "the step called backward() on what its loss is made of: return the loss, and leave backward, the "
                "optimizer's step and zero_grad to the engine; or it keeps a tensor of an earlier step: detach() that"
            ) from error
        refuse_changed(error)
        raise


def refuse_changed(error: RuntimeError) -> None:
    """Raise ValueError if `error` is that of PyTorch's DistributedDataParallel for a static graph that changes."""
    if "training graph has changed in this iteration" in str(error):
        raise ValueError(
            "the loss depends on other parameters than in the first step, which PyTorch's static graph does not take: take "
            "another mode (nccl_sync and zero1 take it)"
        ) from error
