"""Measures the memory of a rank by mode, ranks and batch size, on the live tensors: docs/explanation/sharding.md.

    python -m benchmarks.sharding [model[@data]:batch[,batch...] ...] [--modes a,b] [--ranks 1,2,4]

After two small steps the optimizer has its state and the order of gradients is known; the next step is measured. Each
row is printed as soon as it is
measured. `data` is a data set, or `cifar100-shaped`: 3x32x32 and 100 classes, drawn by a seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bench import models
from bench.models.data.options import PLAIN, DataOptions
from benchmarks import frame
from benchmarks.ranks import gather, lay_down
from benchmarks.tensor_memory import STATE, Kinds, TensorWatch, kinds
from ddp.backends.base import load
from ddp.core.messages.commands import Join
from ddp.core.policies.sync import Sync
from ddp.core.samples.spans import Batch
from ddp.engine.loop import TrainingLoop
from ddp.process.scratch import scratch
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.sharding.zero1 import ShardedStep
from ddp.sharding.zero2 import largest

MODES = ("nccl_sync", "zero1", "zero2", "zero3", "torch_ddp", "torch_fsdp")
RANKS = (1, 2, 4)
BATCHES = {"mlp": (16,), "resnet_graph": (32,)}
SHAPED = {"cifar100-shaped": ("synthetic", DataOptions(samples=512, classes=100))}
"""Data sets that are another one with settings."""
WARM, FEW = 2, 2
"""Steps that go before, and samples of a rank in each of them: enough to normalise over."""
COLUMNS = (*STATE, "together", "all else", "total", "largest layer")


def measure(folder: Path, rank: int, world_size: int, model: str, data: str, batch: int, mode: str) -> None:
    """One rank's figures: bytes by kind at their most, the most of all else, bytes of the largest layer."""
    torch.set_num_threads(1)
    recipe = models.load(model).recipes["quick"]
    if data:
        name, options = SHAPED.get(data, (data, PLAIN))
        recipe = replace(recipe, data=name, data_options=options)
    task = partial(models.make_task, model, recipe, "data")
    job = Job(task, 1, batch, 0, world_size, Sync(), "nccl" if mode == "nccl_sync" else mode, folder, device="cpu")
    loop = TrainingLoop(job, rank, lambda event: None)
    replica = loop.replica
    side = load(job.backend)(job, rank, loop)
    side.join(Join(rank, 0, tuple(range(world_size)), False, "a measurement"))
    layer = 8 * largest(replica.model)
    replica.gradient_sync = side.gradient_sync(replica)

    with TensorWatch(partial(_kinds, replica)) as watch:
        at = 0
        for number, size in enumerate((FEW,) * WARM + (batch,)):
            watch.looking = number == WARM
            start = at + size * rank
            replica.step(Batch(0, start, start + size, size * world_size), 0.0)
            at += size * world_size
    lay_down(folder, rank, {"peak": watch.peak, "else": watch.activations, "most": watch.most, "layer": layer})
    side.close()


def _kinds(replica: Replica) -> Kinds:
    """Of PyTorch's engines what the optimizer moves, which FSDP gives it in slices; layers that it gathers are all else."""
    within = replica.gradient_sync
    if within is None or isinstance(within, ShardedStep):
        return kinds(replica.model, replica.optimizer, within)
    found = kinds(within.module, replica.optimizer)
    return {kind: list(_local(tensors)) for kind, tensors in found.items()}


def _local(tensors: list[Tensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        yield tensor.to_local() if isinstance(tensor, DTensor) else tensor


def show(model: str, data: str, batches: tuple[int, ...], modes: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Print a table: a row for each mode, number of ranks and batch size, of the rank that has most."""
    print(f"{model}{f' on {data}' if data else ''}, MB\n", flush=True)
    head = ("mode", "ranks", "batch", *COLUMNS)
    print(_row(head), _row(("---", *("---:" for _ in head[1:]))), sep="\n", flush=True)
    for mode, size, batch in product(modes, sizes, batches):
        found = _most(size, (model, data, batch, mode))
        state = [found["peak"][kind] for kind in STATE]
        figures = (*state, sum(state), found["else"], found["most"], found["layer"])
        print(_row((mode, size, batch, *(f"{each / 1e6:,.3f}" for each in figures))), flush=True)
    print(flush=True)


def _row(cells: Iterable[Any]) -> str:
    first, *others = cells
    return f"| {first:<11} | " + " | ".join(f"{cell:>10}" for cell in others) + " |"


LIMIT_S = 3600.0
"""For the ranks of one row: on a machine with other work, too."""


def _most(size: int, what: tuple[Any, ...]) -> dict[str, Any]:
    with scratch() as folder:
        found = gather(folder, measure, [(rank, size, *what) for rank in range(size)], LIMIT_S)
    most: dict[str, Any] = max(found, key=lambda each: each["most"])
    return most


def main() -> None:
    """Print the tables."""
    parser = frame.options(__doc__)
    parser.add_argument("cells", nargs="*", default=[f"{m}:{','.join(map(str, b))}" for m, b in BATCHES.items()])
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    given = parser.parse_args()
    modes, sizes = tuple(given.modes.split(",")), tuple(map(int, given.ranks.split(",")))
    for cell in given.cells:
        what, _, batches = cell.partition(":")
        model, _, data = what.partition("@")
        show(model, data, tuple(map(int, (batches or "16").split(","))), modes, sizes)


if __name__ == "__main__":
    frame.run_command(main)
