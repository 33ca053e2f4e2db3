"""Gradients averaged inside the user's own loop: processes that the user starts (torchrun or by hand), and no coordinator.

`group` is which ranks there are and what they reduce with, `startup_check` what they compare first, `reducer` the buckets
of one model, `module` the drop-in for torch's DistributedDataParallel, `no_sync` which of its passes send, `divergence`
whether its replicas are alike, `replicas` the explicit one for loops of any shape, `sampler` a rank's samples for torch's
DataLoader. `ddp.gradients.buckets` decides what travels with what, and when.
"""

from ddp.parallel.group import Group, get_local_rank, get_rank, get_world_size, init
from ddp.parallel.module import DistributedDataParallel
from ddp.parallel.replicas import Replicas, wrap
from ddp.parallel.sampler import RoundRobinSampler

__all__ = [
    "DistributedDataParallel",
    "Group",
    "Replicas",
    "RoundRobinSampler",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "init",
    "wrap",
]
