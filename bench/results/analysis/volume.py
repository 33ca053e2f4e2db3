"""The formula of what ranks send: the one that results are described with and judged by.

Payload = meetings x ranks x parameters x bytes of an element. Replicas that meet in every step meet once for each global
batch, ceil(samples / (batch x ranks)) times an epoch (`zero2` and `zero3` once for each of its micro-batches); others as
often as rounds are recorded. Gradients travel in the model's own type, of what is not frozen. Parameters travel in
`averaging.wire` (the `cpu` backend: a snapshot there and an update back, each in the model's type); with
`averaging.optimizer_state` as often again as the optimizer's state is larger than the parameters, in whole numbers. What
the formula leaves out: buffers, and a few bytes of bookkeeping a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.results.cells import micro_batches
from bench.results.schema import Metrics
from bench.results.schema_speed import Volume
from ddp.backends import is_torch_native
from ddp.core.policies import meets_every_step

EVERY_PASS = ("zero2", "zero3")
"""Backends that exchange gradients in every pass of a step."""
IN_SHARDS = ("zero3", "torch_fsdp")
"""Backends whose ranks have a part of the parameters each."""
NEAR = 0.02
"""Shards are filled up to equal sizes by at most such a part of the parameters."""
WIRE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def volume(m: Metrics, config: Mapping[str, Any]) -> Volume:
    """Return the volume of a run with its resolved configuration."""
    expected = formula(m, config)
    return Volume(
        bytes=m.sync.bytes,
        per_step=m.sync.bytes / m.steps if m.steps and not m.resumed else None,
        expected=expected,
        ratio=m.sync.bytes / expected if expected else None,
    )


def formula(m: Metrics, config: Mapping[str, Any]) -> int | None:
    """Return the bytes that all ranks hand over; None where the run is not whole, alone, or its collectives are not seen."""
    meetings = _meetings(m, micro_batches(config) if m.backend in EVERY_PASS else 1)
    whole = m.status == "ok" and not m.resumed and not m.faults
    if m.world_size == 1 or not whole or not m.parameters or not meetings or m.sync.kind == "none":
        return None
    averaging = config.get("averaging")
    settings: Mapping[str, Any] = averaging if isinstance(averaging, dict) else {}
    elements = m.parameters - (m.frozen if m.sync.kind == "gradients" else 0)
    width, copies = width_of(m), 1 + (state_copies(m) if settings.get("optimizer_state") else 0)
    if m.sync.kind == "parameters" and m.backend != "cpu":
        wire = settings.get("wire", "float64")
        if wire not in WIRE_BYTES:
            return None
        width = WIRE_BYTES[wire]
    elif m.sync.kind == "parameters":
        width *= 2
    return meetings * m.world_size * elements * width * copies


def width_of(m: Metrics) -> int:
    """Return the bytes of a parameter: 8 or 2 if all have as many, else 4."""
    sizes = [size for size in m.memory.parameter_bytes or () if size]
    own = (sum(sizes) if m.backend in IN_SHARDS else max(sizes, default=0)) / m.parameters if m.parameters else 0.0
    return next((width for width in (8, 2) if math.isclose(own, width, rel_tol=NEAR)), 4)


def state_copies(m: Metrics) -> int:
    """Return how many times as large as its parameters a rank's state of the optimizer is, rounded down: 2 for Adam."""
    sizes = zip(m.memory.optimizer_bytes or (), m.memory.parameter_bytes or (), strict=False)
    return min((state // parameters for state, parameters in sizes if state and parameters), default=0)


def _meetings(m: Metrics, parts: int) -> int:
    every_step = meets_every_step(m.policy) and not is_torch_native(m.backend)
    if not every_step or m.ledger is None or not m.ledger.samples:
        return m.sync.count
    whole, rest = divmod(m.ledger.samples, m.batch_size * m.world_size)
    most = m.batch_size // parts
    # Of the last step, as many as there are at least: with batch norm a micro-batch has two samples.
    last = max(min(math.ceil(math.ceil(rest / m.world_size) / most), rest // m.world_size // 2), 1) if rest else 0
    return m.epochs_planned * (whole * parts + last)
