"""FSDP with groups inside groups, as a larger model has them."""

from __future__ import annotations

from ddp.backends.torch_backend import TorchBackend
from ddp.backends.torch_fsdp import FullyShardedStep


class Grouped(FullyShardedStep):
    group_elements = 500


class Backend(TorchBackend):
    step_type = Grouped
