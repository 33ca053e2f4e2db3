"""The formula of the bytes that ranks send. Results describe it, and the check `volume` compares it.

Bytes = synchronizations x ranks x parameters x bytes of an element.

- Replicas that synchronize every step do so once per global batch: ceil(samples / (batch x ranks)) times an epoch.
  `zero2` and `zero3` do so once per micro-batch. Other replicas synchronize once per recorded round.
- Gradients of trained parameters travel in the model's own type, or types.
- Parameters travel in `averaging.wire`. The `cpu` backend sends a snapshot and receives an update, both in the model's
  type. `torchft` averages in that type.
- With `averaging.optimizer_state`, add as many copies as the optimizer's state is larger than the parameters, rounded
  down.

The formula leaves out buffers, and a few bytes of bookkeeping per message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.results.schema_speed import Volume
from bench.results.training_settings import micro_batches
from ddp.backends import is_torch_native
from ddp.core.policies import meets_every_step

EVERY_PASS = ("zero2", "zero3")
"""Backends that exchange gradients in every micro-batch of a step."""
TORCHFT = "torchft"
"""Backend whose gradients travel unmeasured, in a hook of its own."""
IN_SHARDS = ("zero3", "torch_fsdp")
"""Backends whose ranks each hold a shard of the parameters."""
NEAR = 0.02
"""Largest fraction of the parameters by which shards are padded to equal sizes."""
WIRE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def volume(m: Metrics, config: Mapping[str, Any]) -> Volume:
    """Return the volume of a run; `config` is its resolved configuration."""
    expected = formula(m, config)
    return Volume(
        bytes=m.sync.bytes,
        per_step=m.sync.bytes / m.steps if m.steps and not m.resumed else None,
        expected=expected,
        ratio=m.sync.bytes / expected if expected else None,
    )


def formula(m: Metrics, config: Mapping[str, Any]) -> int | None:
    """Return the bytes that all ranks send; None for unfinished, resumed or faulty runs, for one rank, for hidden
    collectives, and if it is not known."""
    meetings = _meetings(m, micro_batches(config) if m.backend in EVERY_PASS else 1)
    whole = m.status == "ok" and not m.resumed and not m.faults
    hidden = m.sync.kind == "none" or (m.sync.kind == "gradients" and m.backend == TORCHFT)
    if m.world_size == 1 or not whole or not m.parameters or not meetings or hidden:
        return None
    settings = group_of(config, "averaging")
    elements = m.parameters - (m.frozen if m.sync.kind == "gradients" else 0)
    copies = 1 + (state_copies(m) if settings.get("optimizer_state") else 0)
    if m.sync.kind == "parameters" and m.backend not in ("cpu", TORCHFT):
        wire = settings.get("wire", "float64")
        if wire not in WIRE_BYTES:
            return None
        return meetings * m.world_size * elements * WIRE_BYTES[wire] * copies
    if (own := _own_bytes(m, elements)) is None:
        return None
    ways = 2 if m.sync.kind == "parameters" and m.backend == "cpu" else 1
    return meetings * m.world_size * own * ways * copies


def _own_bytes(m: Metrics, elements: int) -> int | None:
    """Return the bytes of `elements` parameters in the types that the model has; None if it is not known, as types differ
    and some parameters are left out, or padded."""
    if not several_types(m):
        return elements * width_of(m)
    return None if m.backend in IN_SHARDS or elements != m.parameters else _held(m)


def several_types(m: Metrics) -> bool:
    """Return whether the parameters of a run have several types, of different sizes. Of shards, which are padded, this is
    known only if they are smaller than parameters of one type."""
    size, uniform = _held(m), (m.parameters or 0) * width_of(m)
    if m.backend in IN_SHARDS:
        return 0 < size < (1 - NEAR) * uniform
    return size > 0 and not uniform <= size <= (1 + NEAR) * uniform


def width_of(m: Metrics) -> int:
    """Return the bytes of a parameter of a run."""
    return width(_held(m), m.parameters or 0)


def _held(m: Metrics) -> int:
    """Return the bytes of all parameters of a replica; 0 if it is not known."""
    sizes = [size for size in m.memory.parameter_bytes or () if size]
    return sum(sizes) if m.backend in IN_SHARDS else max(sizes, default=0)


def width(size: int, parameters: int) -> int:
    """Return the bytes of each of `parameters` of `size` bytes: 8 or 2 if all have that size, else 4."""
    own = size / parameters if parameters else 0.0
    return next((width for width in (8, 2) if math.isclose(own, width, rel_tol=NEAR)), 4)


def state_copies(m: Metrics) -> int:
    """Return the size of a rank's optimizer state as a multiple of its parameters, rounded down: 2 for Adam."""
    sizes = zip(m.memory.optimizer_bytes or (), m.memory.parameter_bytes or (), strict=False)
    return min((state // parameters for state, parameters in sizes if state and parameters), default=0)


def _meetings(m: Metrics, parts: int) -> int:
    every_step = meets_every_step(m.policy) and not is_torch_native(m.backend)
    if not every_step or m.ledger is None or not m.ledger.samples:
        return m.sync.count
    whole, rest = divmod(m.ledger.samples, m.batch_size * m.world_size)
    most = m.batch_size // parts
    if parts > 1 and most == 1:
        return 0  # not known: with batch norm fewer micro-batches have two samples each
    # The last step has at least so many micro-batches, as batch norm needs two samples in each.
    last = max(min(math.ceil(math.ceil(rest / m.world_size) / most), rest // m.world_size // 2), 1) if rest else 0
    return m.epochs_planned * (whole * parts + last)
