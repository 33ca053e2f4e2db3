"""Needle's memory (its tables 10.2): ResNet-34 on 4 GPUs, batches of 16 and 32, replicated and in shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.results.runfolder import Run
from benchmarks.seeds.parts import MB, ours, shown, table

THEIRS = {
    16: {
        "Model Memory Overhead": (1252.00, 1442.00),
        "Total Memory (after backward)": (10484.00, 2792.00),
        "Estimated Model Memory": (2922.97, 1278.80),
    },
    32: {
        "Model Memory Overhead": (1252.00, 1440.00),
        "Total Memory (after backward)": (17244.00, 2540.00),
        "Estimated Model Memory": (2922.97, 1278.80),
    },
}
"""Batch -> figure -> (DDP, their ZeRO-3), MB."""
REPLICATED = "nccl_sync"
KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def worst(values: Sequence[int | None] | None) -> float | None:
    """Return the largest of ranks' figures, MB; None where none is known."""
    known = [value for value in values or () if value is not None]
    return max(known) / MB if known else None


def by_kind(run: Run) -> dict[str, float | None]:
    """Return the memory of the rank that has most of each kind, MB."""
    return {kind: worst(getattr(run.metrics.memory, kind)) for kind in KINDS}


def total(run: Run) -> float | None:
    """Return what is there after a backward pass: parameters, gradients, optimizer state and activations, MB."""
    values = [value for value in by_kind(run).values() if value is not None]
    return sum(values) if len(values) == len(KINDS) else None


def section(runs: list[Run], out: Path | None) -> list[str]:
    """Return this part of the page."""
    parts = ["## Needle: memory by kind, `experiment=needle_memory`"]
    for batch, figures in THEIRS.items():
        theirs = [
            [name, f"{ddp:.0f}", f"{zero:.0f}", f"{ddp - zero:.0f}", f"{1 - zero / ddp:.1%}"]
            for name, (ddp, zero) in figures.items()
        ]
        parts += [
            f"### Batches of {batch}",
            "Theirs, MB of a GPU:",
            table(["figure", "DDP", "their ZeRO-3", "saved", "saved, %"], theirs),
            "Ours, MB of the rank that has most:",
            _ours([run for run in runs if run.metrics.batch_size == batch]),
        ]
    differs = (
        "Theirs: 21 million parameters on images of 32x32, what the driver reports of a GPU, allocator, buffers of"
        " NCCL and all, and their ZeRO-3 keeps parameters whole. Ours: the parameters and data named above (`synthetic` "
        "images are drawn, as CIFAR-100 is not bundled, which changes no byte that is counted), bytes of tensors; "
        "activations are what one forward pass keeps, which no sharding changes, so the saving after a backward pass is "
        "smaller than theirs by that. Saved: against `nccl_sync`. Resident memory is that of the process, with Python, "
        "PyTorch and the drawn images."
    )
    return [*parts, ours(runs), differs]


def _ours(runs: list[Run]) -> str:
    whole = next((total(run) for run in runs if run.metrics.mode == REPLICATED), None)
    states = next((_state(run) for run in runs if run.metrics.mode == REPLICATED), None)
    rows = []
    for run in runs:
        own, state = total(run), _state(run)
        rows.append(
            [
                f"`{run.metrics.mode}`",
                *(shown(value, "{:.1f}") for value in by_kind(run).values()),
                shown(state, "{:.1f}"), _saved(state, states), shown(own, "{:.1f}"), _saved(own, whole),
                shown(worst(run.metrics.memory.peak_rss_bytes), "{:.0f}"),
            ]
        )  # fmt: skip
    headers = [
        "mode", "parameters", "gradients", "optimizer", "activations",
        "first three", "saved", "all four", "saved", "peak resident",
    ]  # fmt: skip
    return table(headers, rows)


def _state(run: Run) -> float | None:
    values = [value for kind, value in by_kind(run).items() if kind != "activation_bytes" and value is not None]
    return sum(values) if len(values) == len(KINDS) - 1 else None


def _saved(own: float | None, whole: float | None) -> str:
    return "-" if own is None or not whole else f"{1 - own / whole:.1%}"
