"""`nccl`: NCCL, where every rank has a GPU of its own. A collective that exceeds its time limit raises ExchangeBroken,
because nothing else wakes a rank that waits in NCCL."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ddp.comm.transports import gloo
from ddp.comm.transports.base import TransportConfig


def own_gpu(device: torch.device, ranks: int) -> bool:
    """Return whether each of the `ranks` on this host has its own GPU; `device` is one of theirs."""
    return device.type == "cuda" and torch.cuda.device_count() >= ranks


class Transport(gloo.Transport):
    """The same as gloo's transport, with NCCL as the library."""

    name = "nccl"

    def __init__(self, config: TransportConfig) -> None:
        super().__init__(config)
        # A collective that is too late raises, instead of ending the process.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

    @staticmethod
    def applies(config: TransportConfig) -> bool:
        """Return whether every rank has its own GPU."""
        return own_gpu(config.device, config.host_ranks or config.world_size)

    def _formed(self) -> None:
        """Keep the time limit: it is what wakes a rank."""

    def leave(self) -> None:
        """Abort the group: destroying it would wait for collectives in progress."""
        if dist.is_initialized():
            dist.distributed_c10d._abort_process_group()

    def close(self) -> None:
        """Destroy the group; no collective is in progress."""
        if dist.is_initialized():
            dist.destroy_process_group()
