"""The cost of a sample: work, tokens, gradient norms, memory by kind. From what ranks record when they finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from math import sqrt
from statistics import fmean, median
from typing import Any

from bench.results.analysis.stream import RunRecords
from bench.results.runfolder import group_of
from bench.results.schema import Metrics, PeakMemory
from bench.results.schema_speed import GradientNorm, StepCosts
from ddp.core.messages.event_parts import StepWork

IN_SHARDS = ("zero1", "zero2", "zero3", "torch_fsdp")
"""Backends whose ranks each hold a shard of the gradients when the optimizer steps."""
PEAKS = {
    "NVIDIA H100 80GB HBM3": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "NVIDIA H200": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "NVIDIA A100-SXM4-80GB": {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
}
"""Device -> precision -> dense operations per second, without TF32. Source: NVIDIA's data sheets."""
_KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def memory(world_size: int, stream: RunRecords) -> PeakMemory:
    """Return the peak memory of each rank, and its parts if they were recorded."""
    last = [stream.finished.get(rank) for rank in range(world_size)]
    works = [None if event is None else event.work for event in last]
    kinds: dict[str, list[int | None] | None] = {
        kind: [None if each is None else getattr(each, kind) for each in works] if any(works) else None
        for kind in _KINDS
    }
    return PeakMemory(
        peak_rss_bytes=[event.peak_rss_bytes if event else None for event in last],
        peak_device_bytes=[event.peak_device_bytes if event else None for event in last],
        **{
            kind: values if values is not None and any(value is not None for value in values) else None
            for kind, values in kinds.items()
        },
    )


def work(stream: RunRecords, metrics: Metrics, config: Mapping[str, Any]) -> StepCosts | None:
    """Return the cost of a sample; None if ranks recorded nothing of it."""
    works = [event.work for _, event in sorted(stream.finished.items()) if event.work is not None]
    if not works:
        return None
    first, rate = works[0], metrics.throughput.samples_per_s
    tokens, flop = first.tokens or None, first.flop_per_sample
    flop_per_s = None if flop is None or rate is None else flop * rate
    peak = _peak(metrics, config)
    return StepCosts(
        gradient_norm=_norm(works, metrics.backend in IN_SHARDS and metrics.world_size > 1),
        tokens_per_sample=tokens,
        tokens_per_s=None if tokens is None or rate is None else tokens * rate,
        flop_per_sample=flop,
        flop_per_s=flop_per_s,
        peak_share=None if flop_per_s is None or peak is None else flop_per_s / peak,
    )


def _peak(metrics: Metrics, config: Mapping[str, Any]) -> float | None:
    """Return the peak operations per second of all devices together; None: not known."""
    names = metrics.env.get("gpus")
    on_gpus = bool(metrics.devices) and all(device.startswith("cuda") for device in metrics.devices)
    if not on_gpus or not isinstance(names, list) or not names:
        return None
    precision = group_of(config, "train").get("precision", "fp32")
    each = PEAKS.get(str(names[0]), {}).get(str(precision))
    places = list(zip(metrics.launcher.hosts if metrics.launcher else repeat(""), metrics.devices, strict=False))
    # Ranks that each see only their own device all name it device 0.
    if metrics.launcher and len(set(places)) < len(places):
        return None
    return None if each is None else each * len(set(places))


def _norm(works: Sequence[StepWork], in_shards: bool) -> GradientNorm | None:
    rows = list(_whole(works) if in_shards else (value for each in works for value in each.norms))
    if not rows:
        return None
    steps, known = [step for step, _ in rows], [norm for _, norm in rows if norm is not None]
    first, last = min(steps), max(steps)
    return GradientNorm(
        steps=len(rows),
        first=_mean([norm for step, norm in rows if step == first]),
        p50=median(known) if known else None,
        last=_mean([norm for step, norm in rows if step == last]),
    )


def _whole(works: Sequence[StepWork]) -> Iterator[tuple[int, float | None]]:
    """Yield (step, norm of the whole gradient) from the norms of shards, for steps that all ranks measured."""
    for parts in zip(*(each.norms for each in works), strict=False):
        norms = [norm for _, norm in parts if norm is not None]
        if len({step for step, _ in parts}) == 1:
            yield parts[0][0], sqrt(sum(norm**2 for norm in norms)) if len(norms) == len(parts) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
