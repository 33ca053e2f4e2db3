"""Measures the cost of the timeline for a step: `python -m benchmarks.timeline`.

A replica of a model trains block by block, in turns with the engine's meter, which reads the clock, keeps slices and
writes them, and with a meter that does nothing. For each model it prints the processor time of the meter's own calls
over that of a step, and the median ratio of neighbouring blocks' processor times less one, with its 95 % interval.
`control` is the same with two meters that do nothing: it shows the noise.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from bench import models
from ddp.core.policies.sync import Sync
from ddp.core.samples.spans import Batch
from ddp.process.meter import Meter
from ddp.process.slowdown import Slowdown
from ddp.replica.replica import Replica
from ddp.replica.task import Job

CPU = torch.device("cpu")
BLOCK_S = 0.1
"""About the length of a block, at the end of which slices are written out: as often as in a run (`meter.KEEP_S`)."""


class Silent(Meter):
    """Records nothing, and does not look at the clock."""

    def add(self, kind: str, since: float, seq: int = 0, size: int = 0) -> float:
        return since

    def flush(self) -> None: ...


def block(replica: Replica, meter: Meter, size: int, first: int, steps: int) -> float:
    """Seconds of the processor for so many steps, and for writing out what they left, as a report does."""
    replica._meter = meter
    began = time.process_time()
    for step in range(first, first + steps):
        start = step % (replica.samples // size) * size
        replica.step(Batch(0, start, start + size, size), float(start))
    meter.flush()
    return time.process_time() - began


def ratios(replica: Replica, size: int, steps: int, meters: tuple[Meter, Meter], pairs: int) -> np.ndarray:
    """Of the times of neighbouring blocks, with the first meter and with the other, less one; shape [pairs]."""
    rows = []
    for turn in range(pairs + 3):  # the first ones warm up
        taken = {
            way: block(replica, meters[way], size, turn * steps, steps) for way in ((0, 1) if turn % 2 else (1, 0))
        }
        rows.append(taken[0] / taken[1] - 1)
    return np.array(rows[3:])


def own(meter: Meter, steps: int) -> float:
    """Seconds of the processor that the meter takes for so many steps of four slices: the median of many times."""
    taken = []
    for _ in range(50):
        began, at = time.process_time(), 0.0
        for kind in ("data", "forward", "backward", "optimizer") * steps:
            at = meter.add(kind, at)
        meter.flush()
        taken.append(time.process_time() - began)
    return float(np.median(taken))


def row(model: str, pairs: int, folder: Path) -> str:
    """Of the table."""
    recipe = models.load(model).recipes["quick"]
    size = recipe.batch_size
    job = Job(partial(models.make_task, model, recipe, ""), 1, size, 0, 1, Sync(), "nccl", folder)
    meter, silent, other = Meter(0, folder, CPU), Silent(1, folder, CPU), Silent(2, folder, CPU)
    replica = Replica(job, CPU, meter, Slowdown(1.0))
    steps = max(round(9 * BLOCK_S / min(block(replica, silent, size, 0, 9) for _ in range(3))), 1)
    whole = float(np.median([block(replica, silent, size, 0, steps) for _ in range(20)]))
    found = [ratios(replica, size, steps, (first, silent), pairs) for first in (meter, other)]
    apart = 98 / np.sqrt(pairs)  # of the places of order statistics, in percent: 1.96 sqrt(n / 4)
    points = [np.percentile(each, [50, 50 - apart, 50 + apart]) for each in found]
    cells = [f"{middle:+.2%} ({low:+.2%} to {high:+.2%})" for middle, low, high in points]
    return f"| {model} | {1e3 * whole / steps:.2f} ms | {own(meter, steps) / whole:.2%} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--models", nargs="*", default=["mlp", "lenet", "resnet_graph"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | step | the meter's own | with and without | control |\n|---|---:|---:|---:|---:|")
    for model in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            print(row(model, asked.pairs, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
