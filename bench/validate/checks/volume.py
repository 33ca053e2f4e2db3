"""Ranks sent as many bytes as their mode must send: the number of its collectives, each with the whole model.

`bench.results.analysis.volume` has the formula, a lower bound. Beyond it are allowed buffers, which it leaves out, and
a few bytes of bookkeeping per message.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.results.analysis import volume
from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.messages.event_parts import SketchGroup

BEYOND, BARE = 0.5, 0.05
"""Fraction of the parameters' bytes that buffers may add, at least; and fraction that is allowed without any
buffers."""
WHOLE = ("nccl", "cpu")
"""Backends that average whole replicas."""
WIDE = 4
"""Bytes that a buffer's value may cost, in units of a parameter's: it travels in double precision, both ways."""
SEVERAL, FLAG = " to ", 2.0
"""Mark of a sketch row that stands for several tensors; and gradient elements that a flag "used" may cost, at most."""
MESSAGE = 64
"""Bytes of bookkeeping that a message may have."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a finished run sent less than its formula, or more than buffers explain; None if no formula
    applies."""
    cell = case.cell
    beyond = {run.metrics.run_id: share for run, share in case.each(_allowed)}
    known = [(run.metrics, formula(run)) for run in cell.runs if run.metrics.status == "ok"]
    measured = [(m, expected) for m, expected in known if expected is not None]
    if not measured:
        return None
    state = bool((cell.runs[0].config.get("averaging") or {}).get("optimizer_state"))
    wrong = [
        (m, expected)
        for m, expected in measured
        if not expected <= m.sync.bytes <= _most(m, expected, state, beyond.get(m.run_id, BEYOND))
    ]
    m, expected = (wrong or measured)[0]
    line = (
        f"seed {m.seed}: {m.sync.bytes:,} bytes of {m.sync.kind} sent, {m.sync.bytes / expected - 1:+.2%} vs. the formula's "
        f"{expected:,} (allowed: no less, {beyond.get(m.run_id, BEYOND):.0%} more for buffers)"
    )
    return verdict("FAIL" if wrong else "PASS", "volume", cell, line)


def _allowed(run: Run, known: Records) -> float:
    """Return the fraction that may be sent beyond the trained parameters."""
    return _beyond(run.metrics, known.groups)


def formula(run: Run) -> int | None:
    """Return the bytes that all ranks send by the formula; None where it does not apply, as when a rank joined
    later."""
    return None if run.metrics.begun_without else volume.formula(run.metrics, run.config)


def _beyond(m: Metrics, groups: Sequence[SketchGroup]) -> float:
    """Return the fraction that may be sent beyond the trained parameters: small for whole replicas without buffers
    whose parameters have one type."""
    alike = len({group.dtype for group in groups}) == 1 and all(group.kind == "parameters" for group in groups)
    trained = sum(group.elements for group in groups if group.trained)
    if not alike or not trained or m.engine != "elche" or m.backend not in WHOLE:
        return max(BEYOND, _buffers(groups))
    if m.sync.kind == "parameters":
        return BARE
    single = all(SEVERAL not in group.name for group in groups)
    return BARE + FLAG * len(groups) / trained if single else BEYOND


def _buffers(groups: Sequence[SketchGroup]) -> float:
    """Return the bytes of buffers as a fraction of those of the trained parameters."""
    buffers = sum(group.elements for group in groups if group.kind == "buffers")
    trained = sum(group.elements for group in groups if group.trained)
    return WIDE * buffers / trained if trained else 0.0


def _most(m: Metrics, expected: int, state: bool, beyond: float) -> float:
    """Return the most bytes that are plausible, given buffers, optimizer state (rounded up to a whole copy) and
    bookkeeping."""
    copies = 1 + volume.state_copies(m)
    most = expected * (copies + 1) / copies if state else expected
    return (1 + beyond) * most + MESSAGE * m.world_size * m.sync.count
