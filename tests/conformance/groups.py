"""FSDP with groups inside groups, as a larger model has them."""

from __future__ import annotations

from ddp.runtime.engines.torch_fsdp import FullyShardedStep
from ddp.runtime.engines.torch_peer import TorchBackend


class Grouped(FullyShardedStep):
    group_elements = 500


class Backend(TorchBackend):
    team = Grouped
