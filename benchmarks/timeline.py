"""What the timeline costs a step: `python -m benchmarks.timeline`.

A replica of a model trains block by block, in turns with the engine's meter, which reads the clock, keeps slices and writes
them out, and with one that does nothing. Prints, for each model, the median of the ratios of neighbouring
blocks less one, the 95 % interval of this median, and the quartiles of the ratios: of processor time, which other programs
disturb less, and of time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

import models
from ddp.core.policies.sync import Sync
from ddp.core.spans import Batch
from ddp.runtime.meter import Meter
from ddp.runtime.replica import Replica
from ddp.runtime.slowdown import Slowdown
from ddp.runtime.task import Job

CPU = torch.device("cpu")
BLOCK_S = 0.05
"""About the length of a block, at the end of which slices are written out: twice as often as in a run."""


class Silent(Meter):
    """Records nothing, and does not look at the clock."""

    def add(self, kind: str, since: float, seq: int = 0, size: int = 0) -> float:
        return since

    def flush(self) -> None: ...


def block(replica: Replica, meter: Meter, size: int, first: int, steps: int) -> tuple[float, float]:
    """Seconds of the processor, and seconds, of so many steps, and of writing out what they left, as a report does."""
    replica._meter = meter
    began, worked = time.perf_counter(), time.process_time()
    for step in range(first, first + steps):
        start = step % (replica.samples // size) * size
        replica.step(Batch(0, start, start + size, size), float(start))
    meter.flush()
    return time.process_time() - worked, time.perf_counter() - began


def ratios(model: str, pairs: int, folder: Path) -> np.ndarray:
    """Of the times of neighbouring blocks, with and without, less one; shape [pairs, 2], as `block` has them."""
    recipe = models.load(model).recipes["quick"]
    job = Job(partial(models.make_task, model, recipe, ""), 1, recipe.batch_size, 0, 1, Sync(), "nccl", folder)
    meters = Meter(0, folder, CPU), Silent(1, folder, CPU)
    replica = Replica(job, CPU, meters[0], Slowdown(1.0))
    size = recipe.batch_size
    steps = max(round(9 * BLOCK_S / min(block(replica, meter, size, 0, 9)[1] for meter in meters)), 1)
    rows = []
    for turn in range(pairs + 3):  # the first ones warm up
        order = (0, 1) if turn % 2 else (1, 0)
        taken = {way: block(replica, meters[way], size, turn * steps, steps) for way in order}
        rows.append([a / b - 1 for a, b in zip(taken[0], taken[1], strict=True)])
    return np.array(rows[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--models", nargs="*", default=["mlp", "lenet", "resnet_graph"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | processor time | 95 % | quartiles | time | 95 % | quartiles |\n|---|---:|---:|---:|---:|---:|---:|"
    )
    for model in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            found = ratios(model, asked.pairs, Path(folder))
        apart = 98 / np.sqrt(len(found))  # of the ranks of order statistics, in percent: 1.96 sqrt(n / 4)
        points = np.percentile(found, [50, 50 - apart, 50 + apart, 25, 75], axis=0).T
        cells = [f"{m:+.2%} | {a:+.2%} to {b:+.2%} | {c:+.1%} to {d:+.1%}" for m, a, b, c, d in points]
        print(f"| {model} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
