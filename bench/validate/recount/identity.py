"""What was run, and on what hardware: fields that the ranks' events and the configuration state directly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean, median
from typing import Any

from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.results.training_settings import micro_batches
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure
from ddp.core.messages.event_parts import StepWork

SETTINGS = {
    "world_size": "world_size",
    "epochs_planned": "train.epochs",
    "lr": "train.lr",
    "timing": "timing",
    "emulated_speeds": "cluster.speeds",
}
"""Field of the result -> setting."""
CARRIED = ("nccl", "zero1", "zero2", "zero3")
"""Backends whose collectives a transport carries, as set."""
PEAKS = ("peak_rss_bytes", "peak_device_bytes")
KINDS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def identity(m: Metrics, known: Records, config: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the figures that identify a run."""
    for field, setting in SETTINGS.items():
        wanted: Any = config
        for word in setting.split("."):
            wanted = wanted.get(word) if isinstance(wanted, Mapping) else None
        if wanted is not None:
            yield Figure(field, getattr(m, field), wanted)
    train = group_of(config, "train")
    if isinstance(train.get("batch_size"), int):
        yield Figure("batch_size", m.batch_size, train["batch_size"] * micro_batches(config))
    if isinstance(steps := train.get("steps"), int) and not config.get("resized"):
        due = steps // m.epochs_planned * m.batch_size * m.world_size
        yield Figure(f"samples in an epoch, by train.steps={steps},", due, known.ready[0].samples)
    # Without a configured ratio it is the recipe's, which is 0 for bundled models. One rank needs no scaling.
    ratio, code = train.get("lr_scale_ratio"), config.get("code") or ()
    if (
        ratio is not None
        or m.world_size == 1
        or ("model" in config and "model" not in code and not config.get("script"))
    ):
        yield Figure("lr_scale", m.lr_scale, 1.0 + (ratio or 0.0) * (m.world_size - 1))
    ready = sorted({event.rank: event for event in known.ready}.values(), key=lambda event: event.rank)
    last = {event.rank: event for event in known.finished}
    ends = [last.get(rank) for rank in range(m.world_size)]  # None: a rank that was lost
    yield Figure("devices", m.devices, [event.device for event in ready])
    yield Figure("transport", m.transport, ready[0].transport)
    yield Figure("parameters", m.parameters, ready[0].parameters)
    yield Figure("frozen", m.frozen, ready[0].frozen)
    yield Figure("loader", m.loader, [event.loader for event in ready if event.loader])
    yield from _as_set(m, any(event.note for event in ready), config)
    digests = {event.digest for event in last.values()}
    yield Figure("params_sha256", m.params_sha256, digests.pop() if len(digests) == 1 else None)
    for kind in PEAKS:
        peaks = [None if event is None else getattr(event, kind) for event in ends]
        yield Figure(f"memory.{kind}", getattr(m.memory, kind), peaks)
    works = [event.work for event in last.values() if event.work is not None]
    if not works or len(works) < len(last):
        return
    for kind in KINDS:
        values = [None if event is None else getattr(event.work, kind) for event in ends]
        yield Figure(f"memory.{kind}", getattr(m.memory, kind), values if any(v is not None for v in values) else None)
    if m.work is not None:
        yield Figure("work.tokens_per_sample", m.work.tokens_per_sample, works[0].tokens or None)
        yield Figure("work.flop_per_sample", m.work.flop_per_sample, works[0].flop_per_sample)
        if m.work.gradient_norm is not None and m.backend not in ("zero1", "zero2", "zero3", "torch_fsdp"):
            yield from _norms(m, works)


def _as_set(m: Metrics, noted: bool, config: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield the transport and the loader if they are set. `noted`: a rank says why its loader is another one: data that does
    not fit the device's memory is streamed."""
    wanted = group_of(config, "cluster").get("transport", "auto")
    if wanted != "auto" and m.backend in CARRIED and m.world_size > 1:
        yield Figure(f"transport, as set ({wanted})", m.transport, wanted)
    kind = group_of(config, "loader").get("kind")
    if kind == "streaming" or (kind == "resident" and not noted):
        yield Figure(f"loader, as set ({kind})", sorted({*m.loader} - {kind}), [])


def _norms(m: Metrics, works: list[StepWork]) -> Iterator[Figure]:
    assert m.work is not None
    assert m.work.gradient_norm is not None
    given, rows = m.work.gradient_norm, [row for work in works for row in work.norms]
    yield Figure("work.gradient_norm.steps", given.steps, len(rows))
    for name, step in (("first", min(step for step, _ in rows)), ("last", max(step for step, _ in rows))):
        values = [norm for at, norm in rows if at == step]
        mean = None if None in values else fmean(norm for norm in values if norm is not None)
        yield Figure(f"work.gradient_norm.{name}", getattr(given, name), mean)
    known = [norm for _, norm in rows if norm is not None]
    yield Figure("work.gradient_norm.p50", given.p50, median(known) if known else None)
