"""Times the steps of several ways to train in parallel, in turns in the same ranks; `test_steps` runs it in real
processes.

Every way trains its own replica of one model, by the engine's own step, with the same samples. Ways take turns in
blocks of steps. A block begins when all ranks have arrived and ends when this rank has done its steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench import models
from benchmarks.ranks import lay_down
from ddp import DistributedDataParallel
from ddp.backends.torch_backend import ddp_settings
from ddp.comm.collectives import Collectives
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports import gloo
from ddp.comm.transports.base import TransportConfig
from ddp.comm.transports.choice import choose
from ddp.core.messages.commands import Join
from ddp.core.policies.sync import Sync
from ddp.core.samples.spans import Batch
from ddp.gradients.average import GradientAverage
from ddp.parallel.group import Group, make
from ddp.process.meter import Meter
from ddp.process.slowdown import Slowdown
from ddp.replica.gradient_sync import GradientSync
from ddp.replica.replica import Replica
from ddp.replica.task import Job

BLOCK_S = 0.2
"""How long a block of steps without communication lasts, about."""
WAYS = ("nccl_sync", "over_gloo", "torch_ddp", "ddp", "alone")
"""`over_gloo`: `nccl_sync` through the transport of torch's DDP, which tells the engine's part from the transport's."""
CPU = torch.device("cpu")


class GlooOfTorch(gloo.Transport):
    """The engine's transport over the process group that is there for torch's DDP already."""

    def join(self, members: Sequence[int], generation: int) -> None:
        """Change nothing."""

    leave = close = lambda self: None


class Wrapped:
    """A wrapper that averages in the backward pass; the rest of the seam has nothing to do."""

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter]) -> None:
        self.module, self._parameters = module, parameters

    def begin(self, batch: Batch) -> float:
        for parameter in self._parameters:
            parameter.grad = None
        return 1.0

    def nothing(self, *_: Any) -> None: ...

    backward = idle = exchange = clip = end = undo = rebase = nothing


def replica(job: Job, way: str, group: Group) -> Replica:
    """One way's own replica."""
    folder = job.scratch / way
    folder.mkdir(exist_ok=True)
    meter = Meter(group.rank, folder, CPU)
    made = Replica(job, CPU, meter, Slowdown(1.0))
    parameters = list(made.model.parameters())
    within: GradientSync
    if way in ("nccl_sync", "over_gloo"):
        site = TransportConfig(folder, group.rank, group.world_size, CPU, 30.0)
        collectives = Collectives(
            choose("memory", site) if way == "nccl_sync" else GlooOfTorch(site), meter, Heartbeat(30.0, lambda: None)
        )
        group.barrier()  # every rank has its lock
        collectives.join(Join(group.rank, 0, tuple(range(group.world_size)), False, "benchmark"))
        within = GradientAverage(made.model, made.state, collectives, meter, made.optimizer)
    elif way == "torch_ddp":
        settings = ddp_settings(made.model, made.task)
        within = Wrapped(nn.parallel.DistributedDataParallel(made.model, **settings), parameters)
    elif way == "ddp":
        within = Wrapped(DistributedDataParallel(made.model, process_group=group), parameters)
    else:
        within = Wrapped(made.model, parameters)
    made.gradient_sync = within
    return made


def block(made: Replica, rank: int, world: int, size: int, first: int, steps: int) -> None:
    """So many steps."""
    whole = size * world
    per_epoch = made.samples // whole
    for step in range(first, first + steps):
        start = step % per_epoch * whole
        made.step(Batch(0, start + rank * size, start + (rank + 1) * size, whole), float(start))
    made._meter._slices.clear()


def steps_of_a_block(made: Replica, rank: int, world: int, size: int) -> int:
    """As many steps as fill `BLOCK_S`, by the slowest rank: the same number on all."""
    block(made, rank, world, size, 0, 2)
    began = time.perf_counter()
    block(made, rank, world, size, 2, 2)
    slowest = torch.tensor((time.perf_counter() - began) / 2)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return max(2, round(BLOCK_S / float(slowest)))


def measure(folder: Path, name: str, model: str, rank: int, world: int, pairs: int) -> None:
    """Seconds per step of every way, a row for each turn, in `folder/steps-<rank>.pt`."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("torch", store), rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    group = make(rank, world, CPU, dist.PrefixStore("ours", store), name, 60.0)
    recipe = models.load(model).recipes["quick"]
    job = Job(partial(models.make_task, model, recipe, ""), 1, recipe.batch_size, 0, world, Sync(), "nccl", folder)
    made = {way: replica(job, way, group) for way in WAYS}
    steps = steps_of_a_block(made["alone"], rank, world, recipe.batch_size)
    rows = []
    for turn in range(pairs + 1):  # the first one warms up
        row = []
        for way in WAYS[turn % 2 :] + WAYS[: turn % 2]:
            group.barrier()
            began = time.perf_counter()
            block(made[way], rank, world, recipe.batch_size, turn * steps, steps)
            row.append((way, (time.perf_counter() - began) / steps))
        rows.append([dict(row)[way] for way in WAYS])
    lay_down(folder, rank, torch.tensor(rows[1:]))
    group.barrier()
    group.close()
    dist.destroy_process_group()
