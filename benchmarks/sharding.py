"""Memory of a rank by mode, ranks and batch size, measured on the tensors that live; the tables of docs/sharding.md.

    python -m benchmarks.sharding [model[@data]:batch[,batch...] ...] [--modes a,b] [--ranks 1,2,4]

Two steps go before: then the optimizer has its state and gradients have found their order. The next is watched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.distributed.tensor import DTensor

import models
from benchmarks.ranks import gather, lay_down
from ddp.core.commands import Join
from ddp.core.policies.sync import Sync
from ddp.core.spans import Batch
from ddp.runtime.backends.base import load
from ddp.runtime.loop import Loop
from ddp.runtime.replica import Replica
from ddp.runtime.scratch import scratch
from ddp.runtime.sharding.memory import STATE, Kinds, Watch, kinds
from ddp.runtime.sharding.zero1 import Sharded
from ddp.runtime.sharding.zero2 import largest
from ddp.runtime.task import Job

MODES = ("nccl_sync", "zero1", "zero2", "zero3", "torch_ddp", "torch_fsdp")
RANKS = (1, 2, 4)
BATCHES = {"mlp": (16,), "resnet_graph": (32,)}


def measure(folder: Path, rank: int, world_size: int, model: str, data: str, batch: int, mode: str) -> None:
    """One rank's figures: bytes by kind at their most, the most of all else, bytes of the largest layer."""
    torch.set_num_threads(1)
    recipe = replace(models.load(model).recipes["quick"], **({"data": data} if data else {}))
    task = partial(models.make_task, model, recipe, "data")
    job = Job(task, 1, batch, 0, world_size, Sync(), "nccl" if mode == "nccl_sync" else mode, folder, device="cpu")
    loop = Loop(job, rank, lambda event: None)
    replica = loop.replica
    side = load(job.backend).Backend(job, rank, loop)
    side.join(Join(rank, 0, tuple(range(world_size)), False, "a measurement"))
    layer = 8 * largest(replica.model)
    replica.in_step = side.in_step(replica)

    with Watch(partial(_kinds, replica)) as watch:
        for number in range(3):
            watch.peak, watch.activations, watch.most = dict.fromkeys(STATE, 0), 0, 0
            start = number * batch * world_size + batch * rank
            replica.step(Batch(0, start, start + batch, batch * world_size), 0.0)
    lay_down(folder, rank, {"peak": watch.peak, "else": watch.activations, "most": watch.most, "layer": layer})
    side.close()


def _kinds(replica: Replica) -> Kinds:
    """Of PyTorch's engines what the optimizer moves, which FSDP gives it in slices; layers that it gathers are all else."""
    within = replica.in_step
    if within is None or isinstance(within, Sharded):
        return kinds(replica.model, replica.optimizer, within)
    found = kinds(within.module, replica.optimizer)
    return {kind: list(_local(tensors)) for kind, tensors in found.items()}


def _local(tensors: list[Tensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        yield tensor.to_local() if isinstance(tensor, DTensor) else tensor


def table(model: str, data: str, batches: tuple[int, ...], modes: tuple[str, ...], sizes: tuple[int, ...]) -> str:
    """A row for each mode and number of ranks: the rank that has most."""
    rows = []
    for mode in modes:
        for size in sizes:
            found = [_most(size, (model, data, batch, mode)) for batch in batches]
            state = [found[0]["peak"][kind] for kind in STATE]
            rest = [each["else"] for each in found]
            total = [each["most"] for each in found]
            figures = (
                *state,
                sum(state),
                found[0]["layer"],
                *(x for pair in zip(rest, total, strict=True) for x in pair),
            )
            rows.append([mode, size, *(f"{each / 1e6:,.2f}" for each in figures)])
    columns = [text for batch in batches for text in (f"all else, batch {batch}", f"total, batch {batch}")]
    head = ["mode", "ranks", *STATE, "together", "largest layer", *columns]
    return f"{model}{f' on {data}' if data else ''}, MB\n\n{tabulate(rows, head, tablefmt='github')}\n"


def _most(size: int, what: tuple[Any, ...]) -> dict[str, Any]:
    with scratch() as folder:
        found = gather(folder, measure, [(rank, size, *what) for rank in range(size)])
    most: dict[str, Any] = max(found, key=lambda each: each["most"])
    return most


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", default=[f"{m}:{','.join(map(str, b))}" for m, b in BATCHES.items()])
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    given = parser.parse_args()
    modes, sizes = tuple(given.modes.split(",")), tuple(map(int, given.ranks.split(",")))
    for cell in given.cells:
        what, _, batches = cell.partition(":")
        model, _, data = what.partition("@")
        print(table(model, data, tuple(map(int, (batches or "16").split(","))), modes, sizes), flush=True)


if __name__ == "__main__":
    main()
