"""All replicas are equal: every rank ended with the same parameters and buffers, bit for bit.

Copies of the state are equal too, by their sketches: ranks save the model that all ranks share, a resumed run begins
with the state of its checkpoint, and a rank that joins begins with the state that another rank sent. As many
checkpoints exist as the settings ask for.
"""

from __future__ import annotations

from bench.base.number_format import plural
from bench.results.runfolder import Run, group_of
from bench.validate.records.reading import as_planned, lost_nobody
from bench.validate.records.run_records import Records
from bench.validate.rules.due_records import unsaved
from bench.validate.sketches.linear import apart, combine
from bench.validate.sketches.resumption import begun_otherwise
from bench.validate.sketches.state_copies import joined_otherwise, saved_otherwise
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.sketches import decode


def check(case: Case) -> Verdict | None:
    """Return FAIL if the ranks of a finished run ended with different bits, if a copy of the state differs from its
    original, or if checkpoints are missing; None for a run of one rank that was not resumed."""
    cell = case.cell
    finished = [run for run in cell.runs if run.metrics.status == "ok" and run.metrics.source != "predicted"]
    for run in finished:
        if few := case.derivation.value(_unsaved, run):
            return verdict("FAIL", "agreement", cell, f"seed {run.metrics.seed}: {few}")
    runs = [run for run in finished if run.metrics.world_size > 1 or run.metrics.resumed]
    if not runs:
        return None
    for run in runs:
        if run.metrics.params_sha256 is None:
            where = case.derivation.value(_where, run) or ""
            line = f"seed {run.metrics.seed}: the ranks ended with different parameters{where}"
            return verdict("FAIL", "agreement", cell, line)
        if wrong := case.derivation.value(_copies, run, lost=True):
            return verdict("FAIL", "agreement", cell, f"seed {run.metrics.seed}: {wrong}")
    return verdict(
        "PASS", "agreement", cell, f"all ranks of {plural(len(runs), 'run')} ended with bit-identical models"
    )


def _unsaved(run: Run, known: Records) -> str:
    """Say which checkpoints of a run that went as planned are missing; empty: none."""
    return unsaved(run.metrics, known, run.config) if as_planned(run.metrics) else ""


def _copies(run: Run, known: Records) -> str:
    """Name the copy of a state that differs from its original: a checkpoint, what a resumed run began with, or what a
    rank joined with; empty: none."""
    if not known.groups:
        return ""
    if lost_nobody(run.metrics):
        wrong = saved_otherwise(known)
    else:
        wrong = joined_otherwise(known, group_of(run.config, "averaging"))
    return wrong or begun_otherwise(known)


def _where(run: Run, known: Records) -> str:
    """Name the tensor in which the final sketches of two ranks differ most; empty if ranks recorded no sketches."""
    if not known.groups:
        return ""
    first, *others = sorted(known.finished, key=lambda event: event.rank)
    for other in others:
        if far := apart(known.groups, other.sketch, combine([(1.0, decode(first.sketch))]), 0.0):
            return f" (ranks {first.rank} and {other.rank}, {far})"
    return ""
