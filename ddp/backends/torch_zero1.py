"""`torch_zero1`: PyTorch's ZeroRedundancyOptimizer under DistributedDataParallel. Each rank has a part of the optimizer.

Gradients and buffers are as in `torch_ddp`. After its part of the step, every rank broadcasts the parameters that it
updated. The optimizer is created anew from the class, defaults and parameter groups of the task's optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch.distributed.optim import ZeroRedundancyOptimizer

from ddp.backends.torch_backend import TorchBackend, TorchStep
from ddp.replica.evidence.pieces import StatePiece, of_model, of_optimizer
from ddp.replica.optim.optimizers import members


class ZeroStep(TorchStep):
    """Every rank has the whole model and a shard of the optimizer's state."""

    averages_all = True

    def build(self) -> None:
        """Wrap the model and the optimizer. Raises ValueError for an optimizer that cannot be created again from its
        defaults."""
        self.refuse_hooks()
        self.module = self.wrapped()
        task_made = self.replica.optimizer
        if len(members(task_made)) > 1:
            raise ValueError(
                "torch_zero1 shards the state of one optimizer, not of several; use torch_ddp or mode=zero1"
            )
        kind = type(task_made)
        taken = inspect.signature(kind).parameters
        settings = {name: value for name, value in task_made.defaults.items() if name in taken}
        groups = [dict(group) for group in task_made.param_groups]
        try:
            optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=kind, **settings)
        except TypeError as error:
            raise ValueError(
                f"torch_zero1 cannot make another {kind.__name__} from its settings ({error}); use torch_ddp"
            ) from error
        # After its own part of the step, a rank waits for the others' parts.
        optimizer.optim.register_step_post_hook(lambda *_: self.slowdown.computed())
        self.replica.replace_optimizer(optimizer)

    def pieces(self) -> Iterator[StatePiece]:
        """Iterate over the model, and this rank's shard of the optimizer's state."""
        own = getattr(self.replica.optimizer, "optim", self.replica.optimizer)
        yield from of_model(self.replica.model, self.replica.state, shared=True)
        yield from of_optimizer(self.replica.state.named, own, shared=False)


class Backend(TorchBackend):
    """A rank's side."""

    step_type = ZeroStep
