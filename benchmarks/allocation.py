"""Times the steps of a single rank with the memory settings that ranks inherit from the fork server, and with the
system's defaults:

    python -m benchmarks.allocation [MODEL[:BATCH] ...]

Starts `PAIRS` fresh processes of each kind, in turn. Prints the ratio of their medians by pair, with its quartiles.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import torch

from bench import models
from benchmarks import frame
from ddp.core.policies.sync import Sync
from ddp.core.samples.spans import Batch
from ddp.process.forkserver import ENVIRONMENT
from ddp.process.meter import Meter
from ddp.process.scratch import scratch
from ddp.process.slowdown import Slowdown
from ddp.replica.replica import Replica
from ddp.replica.task import Job

PAIRS, MEASURED_S, LEAST = 7, 1.5, 5
MEMORY = {name: value for name, value in ENVIRONMENT.items() if "ALLOC" in name}


def step(name: str) -> tuple[float, float]:
    """(median seconds of a step, page faults in one) of a model under its quick recipe, perhaps with another batch size."""
    torch.set_num_threads(1)
    name, _, batch = name.partition(":")
    recipe = models.load(name).recipes["quick"]
    recipe = replace(recipe, batch_size=int(batch or recipe.batch_size))
    with scratch() as folder:
        job = Job(partial(models.make_task, name, recipe, ""), 1, recipe.batch_size, 0, 1, Sync(), "nccl", folder)
        meter = Meter(0, folder, torch.device("cpu"))
        replica = Replica(job, torch.device("cpu"), meter, Slowdown(1.0))
        _train(replica, recipe.batch_size, 0.0)  # the first steps are not like the others
        before = _faults()
        seconds = _train(replica, recipe.batch_size, MEASURED_S)
    return statistics.median(seconds), (_faults() - before) / len(seconds)


def _train(replica: Replica, size: int, limit_s: float) -> list[float]:
    """Seconds of each step from the beginning of an epoch on: `LEAST` of them, and more until the limit."""
    seconds: list[float] = []
    while len(seconds) < LEAST or sum(seconds) < limit_s:
        start = len(seconds) % (replica.samples // size) * size
        began = time.perf_counter()
        replica.step(Batch(0, start, start + size, size), 0.0)
        seconds.append(time.perf_counter() - began)
    return seconds


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _asked(name: str, kept: bool) -> tuple[float, float]:
    """`step` in a process of its own."""
    plain = {key: value for key, value in os.environ.items() if key not in MEMORY}
    command = [sys.executable, "-m", "benchmarks.allocation", "--step", name]
    said = subprocess.run(command, env=plain | (MEMORY if kept else {}), capture_output=True, text=True, check=True)
    seconds, faults = map(float, said.stdout.split())
    return seconds, faults


def main(names: list[str]) -> None:
    """A row of the table of docs/explanation/speed.md for each model."""
    for name in names or sorted(models.MODELS):
        pairs = [(_asked(name, True), _asked(name, False)) for _ in range(PAIRS)]
        low, middle, high = statistics.quantiles([kept[0] / plain[0] for kept, plain in pairs], n=4)
        faults = [
            statistics.median(found) for found in zip(*((kept[1], plain[1]) for kept, plain in pairs), strict=True)
        ]
        print(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) | {faults[1]:,.0f} | {faults[0]:,.0f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        print(*step(sys.argv[2]))
    else:
        frame.run_command(partial(main, sys.argv[1:]))
