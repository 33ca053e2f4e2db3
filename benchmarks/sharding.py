"""Memory of a rank by kind of sharding, measured on the tensors that live; the tables of docs/sharding.md.

    python -m benchmarks.sharding [model:batch ...]

Two steps go before: then the optimizer has its state and gradients have found their order. Three are watched.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

import models
from ddp.core.commands import Join
from ddp.core.policies import POLICIES
from ddp.core.spans import Batch
from ddp.runtime import forkserver
from ddp.runtime.collectives import Collectives
from ddp.runtime.instep import GradientAverage
from ddp.runtime.loop import Loop
from ddp.runtime.sharding.memory import STATE, Watch, kinds
from ddp.runtime.sharding.zero1 import Site, Zero1
from ddp.runtime.sharding.zero2 import Zero2, largest
from ddp.runtime.sharding.zero3 import Zero3
from ddp.runtime.task import Job
from ddp.runtime.transports.base import Site as Place
from ddp.runtime.transports.base import choose

KINDS: dict[str, Any] = {"nccl_sync": None, "zero1": Zero1, "zero2": Zero2, "zero3": Zero3}
WORLD_SIZES = (1, 2, 4)


def measure(folder: Path, rank: int, world_size: int, model: str, batch: int, kind: str) -> None:
    """One rank's figures into `folder`: bytes by kind at the peak, the most of all, bytes of the largest layer."""
    recipe = models.load(model).recipes["quick"]
    task = partial(models.make_task, model, recipe, "data")
    job = Job(task, 1, batch, 0, world_size, POLICIES["sync"](), "nccl", folder, device="cpu")
    loop = Loop(job, rank, lambda event: None)
    replica = loop.replica
    collectives = Collectives(
        choose("auto", Place(folder, rank, world_size, loop.device, 30.0)), loop.meter, loop.heart
    )
    collectives.join(Join(rank, 0, tuple(range(world_size)), False, "a measurement"))
    layer = 8 * largest(replica.model)
    sharded: Any = None
    if KINDS[kind] is None:
        replica.in_step = GradientAverage(replica.model, replica.state, collectives, loop.meter)
    else:
        site = Site(replica.model, replica.state, replica.optimizer, collectives, loop.meter, world_size, rank)
        sharded = replica.in_step = KINDS[kind](site)
    whole, share = batch * world_size, batch * rank

    def step(number: int) -> None:
        start = number * whole + share
        replica.step(Batch(0, start, start + batch, whole), 0.0)

    step(0)
    step(1)
    with Watch(lambda: kinds(replica.model, replica.optimizer, sharded)) as watch:
        for number in range(2, 5):
            step(number)
    torch.save({"peak": watch.peak, "most": watch.activations, "layer": layer}, folder / f"measured-{rank}.pt")
    collectives.transport.close()


def table(model: str, batch: int) -> str:
    """Of one model: a row for each kind and number of ranks, the rank that has most."""
    rows = []
    for kind in KINDS:
        for size in WORLD_SIZES:
            with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as place:
                folder, context = Path(place), forkserver.warm()
                args = [(folder, rank, size, model, batch, kind) for rank in range(size)]
                ranks = [context.Process(target=measure, args=each) for each in args]
                for process in ranks:
                    process.start()
                for process in ranks:
                    process.join()
                found = [torch.load(folder / f"measured-{rank}.pt") for rank in range(size)]
            most = max(found, key=lambda each: sum(each["peak"].values()))
            held = [most["peak"][name] for name in STATE]
            rows.append(
                [kind, size, *(f"{each / 1e3:,.0f}" for each in (*held, sum(held), most["most"], most["layer"]))]
            )
    head = ["mode", "ranks", *STATE, "together", "all else", "largest layer"]
    return f"{model}, batches of {batch}, kB\n\n{tabulate(rows, head, tablefmt='github')}\n"


def main() -> None:
    """Print the tables."""
    for word in sys.argv[1:] or ["mlp:16", "resnet_graph:32"]:
        model, _, batch = word.partition(":")
        print(table(model, int(batch or 16)), flush=True)


if __name__ == "__main__":
    main()
