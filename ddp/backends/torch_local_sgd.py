"""`torch_local_sgd`: PyTorch's post-local SGD, an average of the replicas every few steps. Source: arXiv:1808.07217.

For the first WARMUP steps it equals `torch_ddp`. Then every rank steps with its own gradients, and parameters are averaged
after every PERIOD-th step. Both values are from PyTorch's documentation. There, gradients are still averaged within a host;
here all ranks may be on one host, so that is off (`post_local_gradient_allreduce=False`), else nothing would be local. The
mean counts every rank alike. Optimizer state stays with its rank. Buffers are rank 0's, as in `torch_ddp`. Evaluations and
the final model use the mean."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from ddp.backends.torch_backend import TorchBackend, TorchStep
from ddp.core.samples.spans import Batch
from ddp.replica.evidence.step_sketches import AverageSketches, NoSketches
from ddp.replica.memory.flat import swapped

WARMUP = 100
PERIOD = 4


class LocalStep(TorchStep):
    """Every rank has a replica of its own after the warm-up."""

    warmup, period = WARMUP, PERIOD
    averages_all = True
    _begun = 0
    """Steps begun so far."""

    def build(self) -> None:
        """Create hook, averager and optimizer as in PyTorch's documentation."""
        module = self.wrapped()
        # The last argument: no gradient averaging after the warm-up.
        state = PostLocalSGDState(None, None, self.warmup, False)  # type: ignore[no-untyped-call]
        module.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=self.period, warmup_steps=self.warmup)
        self.module = module
        self._local = state
        self._places: list[Tensor] = [parameter.data for parameter in self.replica.state.parameters]
        self._watch_averages(averager)
        own = self.replica.optimizer
        last = getattr(own, "parts", (own,))[-1]  # the last of several optimizers
        last.register_step_post_hook(lambda *_: self.slowdown.computed())  # an average of the replicas may follow
        self.replica.replace_optimizer(PostLocalSGDOptimizer(own, averager))

    def _watch_averages(self, averager: PeriodicModelAverager) -> None:
        """Sketch the averages that are due by PyTorch's documentation, whatever the averager really does."""
        replica, average = self.replica, averager.average_parameters
        sketches = AverageSketches(replica.step_sketches, self.warmup, self.period)

        def watched(params: Any) -> None:
            with sketches.around(self._begun - 1, replica.state.parameters):
                average(params)

        averager.average_parameters = watched  # type: ignore[method-assign]

    def begin(self, batch: Batch) -> float:
        """Begin a step. After the warm-up, gradients are not exchanged, so they are not sketched."""
        self._begun += 1
        if self._begun > self.warmup:
            self._sketches = NoSketches()
        return super().begin(batch)

    @property
    def apart(self) -> bool:
        """Whether the warm-up is over: the next step is this rank's own; PyTorch's optimizer may average parameters after
        it."""
        return self._built and self._local.iter >= self.warmup

    @property
    def averages_next(self) -> bool:
        """Whether an average is due in the next step, by PyTorch's documentation."""
        return self._begun >= self.warmup and (self._begun - self.warmup) % self.period == 0

    def end(self) -> None:
        """Copy the averaged parameters back into the flat state: PyTorch's averager moves them to other memory."""
        for parameter, place in zip(self.replica.state.parameters, self._places, strict=True):
            if parameter.data_ptr() != place.data_ptr():
                place.copy_(parameter.data)
                parameter.data = place
        super().end()

    def assemble(self) -> None:
        """Compute the mean of the replicas. A collective of all ranks."""
        super().assemble()
        trained = [section.values for section in self.replica.state.sections if section.kind == "parameters"]
        self._means = [(values, values / self.size) for values in trained]
        for _, mean in self._means:
            dist.all_reduce(mean)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Swap in the mean for a `with` block."""
        return swapped(self._means)

    def finish(self) -> None:
        """Set the replica to the mean."""
        for values, mean in self._means:
            values.copy_(mean)


class Backend(TorchBackend):
    """A rank's side."""

    step_type = LocalStep
