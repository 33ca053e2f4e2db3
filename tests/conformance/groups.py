"""FSDP with groups inside groups, as a larger model has them."""

from __future__ import annotations

from ddp.runtime.engines.torch_fsdp import Sharded
from ddp.runtime.engines.torch_peer import Peer


class Grouped(Sharded):
    group_elements = 500


class Backend(Peer):
    team = Grouped
