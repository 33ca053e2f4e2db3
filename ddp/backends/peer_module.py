"""PyTorch's DistributedDataParallel as its engines use it. Knows no rank and no step."""

from __future__ import annotations

from typing import Any

from torch import nn

from ddp.replica.passes import refuse_changed


class PeerModule(nn.parallel.DistributedDataParallel):
    """DistributedDataParallel with error messages for a step that uses attributes of the wrapped model, and for a static
    graph that changes."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model."""
        try:
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            refuse_changed(error)
            raise

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if hasattr(self._modules.get("module"), name):
                raise AttributeError(
                    f"the step uses the model's own {name}, and PyTorch's DistributedDataParallel trains what model(...) "
                    "computes: have forward compute it, or take another mode (nccl_sync takes it)"
                ) from error
            raise
