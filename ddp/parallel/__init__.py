"""Averages gradients inside the user's own training loop, in processes that the user starts (by torchrun or by hand),
without a coordinator.

`group` has the ranks and their collectives, `startup_check` what ranks compare before training, `reducer` the buckets of
one model, `module` the drop-in for torch's DistributedDataParallel, `no_sync` the choice of backward passes that send,
`divergence` the comparison of replicas, `replicas` explicit averaging for loops of any shape, `sampler` a rank's samples
for torch's DataLoader. `ddp.gradients.buckets` decides which gradients share a bucket, and when a bucket is sent.
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
