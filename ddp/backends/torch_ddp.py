"""`torch_ddp`: PyTorch's DistributedDataParallel. Gradients are averaged in buckets during the backward pass.

Buffers are not averaged: where the whole model is wanted (an evaluation, a checkpoint, the end) they are rank 0's, and those
that training reads are rank 0's before every forward pass.
"""

from __future__ import annotations

from ddp.backends.torch_backend import TorchBackend, TorchStep


class DistributedStep(TorchStep):
    """Every rank has the whole model and the whole optimizer state."""

    averages_all = True

    def build(self) -> None:
        """Wrap the model in place: it keeps working on the flat state."""
        self.module = self.wrapped()


class Backend(TorchBackend):
    """A rank's side."""

    step_type = DistributedStep
