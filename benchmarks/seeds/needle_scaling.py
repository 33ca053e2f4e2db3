"""Needle's scaling (its table 9.1.1): ResNet-34 on CIFAR-100, batches of 32 per GPU, Adam; minutes of an epoch."""

from __future__ import annotations

from pathlib import Path

from bench.results.runfolder import Run
from benchmarks.seeds.parts import ours, shown, table

THEIRS = {1: 5.2, 2: 3.1, 4: 1.9}
"""GPUs -> minutes of an epoch of 50,000 images."""


def last_epoch_s(run: Run) -> float | None:
    """Return the seconds of the last of several epochs: the first has the warm-up of caches and allocators."""
    seconds = [epoch.seconds for epoch in run.metrics.epochs]
    return seconds[-1] - seconds[-2] if len(seconds) > 1 else None


def section(runs: list[Run], out: Path | None) -> list[str]:
    """Return this part of the page."""
    seconds = {run.metrics.world_size: last_epoch_s(run) for run in runs}
    losses = {run.metrics.world_size: run.metrics.final.train_loss for run in runs}
    alone, cores = seconds.get(1), max((int(str(run.metrics.env.get("cores"))) for run in runs), default=1)
    rows = []
    for ranks, minutes in THEIRS.items():
        own = seconds.get(ranks)
        gain = alone / own if alone and own else None
        bound = min(ranks, cores)
        rows.append(
            [
                str(ranks), f"{minutes:.1f} min", f"{THEIRS[1] / minutes:.2f}", f"{THEIRS[1] / minutes / ranks:.1%}",
                shown(own, "{:.1f} s"), shown(gain), str(bound), shown(gain and gain / bound, "{:.1%}"),
                shown(losses.get(ranks), "{:.3f}"),
            ]
        )  # fmt: skip
    headers = [
        "ranks", "theirs: epoch", "speed-up", "efficiency",
        "ours: epoch", "speed-up", "bound", "of the bound", "training loss",
    ]  # fmt: skip
    differs = (
        "Theirs: GPUs over NCCL, all of CIFAR-100, 21 million parameters, 100 epochs. Ours: the data, parameters and epochs"
        " named above; `synthetic` images are drawn, as CIFAR-100 is not bundled, and below 16 pixels the network is "
        "narrow. A rank of ours has one thread, so more ranks than cores gain nothing: the bound. A batch is 32 on each "
        "rank in both, so more ranks take fewer, larger steps, and losses differ."
    )
    return ["## Needle: seconds of an epoch, `experiment=needle_scaling`", table(headers, rows), ours(runs), differs]
