"""Replicas are one: every rank ended with the same parameters and buffers, bit for bit.

What ranks save is the model that all share, as often as is set; they go on from a checkpoint with what was saved there, and
join with what was sent."""

from __future__ import annotations

from bench.base.number_format import plural
from bench.results.runfolder import Run
from bench.validate.due_records import unsaved
from bench.validate.findings import Case
from bench.validate.linear import apart, combine
from bench.validate.records import as_planned, lost_nobody, records
from bench.validate.resumption import begun_otherwise
from bench.validate.state_copies import joined_otherwise, saved_otherwise
from bench.validate.verdict import Verdict, verdict
from ddp.sketches import decode


def check(case: Case) -> Verdict | None:
    """Return FAIL if the ranks of a finished run ended with different bits, or one went on with another state than it had;
    None for one rank that began at the beginning."""
    cell = case.cell
    finished = [run for run in cell.runs if run.metrics.status == "ok" and run.metrics.source != "predicted"]
    for run in finished:
        if as_planned(run.metrics) and (known := records(run)) and (few := unsaved(run.metrics, known, run.config)):
            return verdict("FAIL", "agreement", cell, f"seed {run.metrics.seed}: {few}")
    runs = [run for run in finished if run.metrics.world_size > 1 or run.metrics.resumed]
    if not runs:
        return None
    for run in runs:
        if run.metrics.params_sha256 is None:
            where = _where(run)
            line = f"seed {run.metrics.seed}: the ranks ended with different parameters{where}"
            return verdict("FAIL", "agreement", cell, line)
        if wrong := _copies(run):
            return verdict("FAIL", "agreement", cell, f"seed {run.metrics.seed}: {wrong}")
    return verdict("PASS", "agreement", cell, f"all ranks of {plural(len(runs), 'run')} ended with the same bits")


def _copies(run: Run) -> str:
    """Say which copy of a state is none: of a checkpoint, of what a run went on with, of what a rank joined with."""
    known, settings = records(run, lost=True), run.config.get("averaging")
    if known is None or not known.groups:
        return ""
    if not lost_nobody(run.metrics):
        return joined_otherwise(known, settings if isinstance(settings, dict) else {})
    return saved_otherwise(known) or begun_otherwise(known)


def _where(run: Run) -> str:
    """Say in which tensor two ranks differ most, where they recorded what they ended with."""
    known = records(run)
    if known is None or not known.groups:
        return ""
    first, *others = sorted(known.finished, key=lambda event: event.rank)
    for other in others:
        if far := apart(known.groups, other.sketch, combine([(1.0, decode(first.sketch))]), 0.0):
            return f" (ranks {first.rank} and {other.rank}, {far})"
    return ""
