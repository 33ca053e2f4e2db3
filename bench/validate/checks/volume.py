"""What ranks sent is what the way of training makes them send: as many meetings as it has, each with the whole model.

Payload = meetings x ranks x parameters x bytes of an element. Replicas that meet in every step meet once for each global
batch, ceil(samples / (batch x ranks)) times an epoch; others as often as rounds are recorded. Gradients travel in 4 bytes an
element, parameters in those of `averaging.wire` (the `cpu` backend: a snapshot there and an update back, 4 bytes each). On
top comes what the formula leaves out: buffers, and a few bytes of bookkeeping a message.
"""

from __future__ import annotations

import math

from bench.runfolder import Run
from bench.schema import Metrics
from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict

WIRE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
BEYOND = 0.5
"""Buffers may be this part of the parameters."""
MESSAGE = 64
"""Bytes of bookkeeping that a message may have."""


def check(case: Case) -> Verdict | None:
    """FAIL if a finished run sent less than its formula, or more than buffers explain; None where there is none."""
    cell = case.cell
    known = [(run.metrics, formula(run)) for run in cell.runs if run.metrics.status == "ok"]
    measured = [(m, expected) for m, expected in known if expected is not None]
    if not measured:
        return None
    wrong = [(m, expected) for m, expected in measured if not expected <= m.sync.bytes <= _most(m, expected)]
    m, expected = (wrong or measured)[0]
    line = (
        f"seed {m.seed}: {m.sync.bytes:,} bytes of {m.sync.kind} sent, {m.sync.bytes / expected - 1:+.2%} of the formula's "
        f"{expected:,} (allowed: none less, {BEYOND:.0%} more for buffers)"
    )
    return verdict("FAIL" if wrong else "PASS", "volume", cell, line)


def formula(run: Run) -> int | None:
    """Bytes that all ranks hand over; None where the run is not whole, alone, or its collectives are not seen."""
    m = run.metrics
    meetings = _meetings(m)
    if m.world_size == 1 or m.resumed or m.faults or not m.parameters or not meetings or m.sync.kind == "none":
        return None
    width = 4
    if m.sync.kind == "parameters" and m.backend != "cpu":
        averaging = run.config.get("averaging")
        wire = averaging.get("wire", "float64") if isinstance(averaging, dict) else "float64"
        if wire not in WIRE_BYTES:
            return None
        width = WIRE_BYTES[wire]
    elif m.sync.kind == "parameters":
        width = 8
    return meetings * m.world_size * m.parameters * width


def _meetings(m: Metrics) -> int:
    every_step = m.policy == "sync" or m.engine.startswith("zero")
    if every_step and m.ledger is not None and m.ledger.samples:
        return m.epochs_planned * math.ceil(m.ledger.samples / (m.batch_size * m.world_size))
    return m.sync.count


def _most(m: Metrics, expected: int) -> float:
    return (1 + BEYOND) * expected + MESSAGE * m.world_size * m.sync.count
