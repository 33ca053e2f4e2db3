"""Replicas are one at the end: every rank ended with the same parameters and buffers, bit for bit."""

from __future__ import annotations

from bench.base.figures import plural
from bench.validate.findings import Case
from bench.validate.verdict import Verdict, verdict


def check(case: Case) -> Verdict | None:
    """Return FAIL if the ranks of a finished run ended with different bits; None for one rank."""
    cell = case.cell
    runs = [m for m in cell.ok if m.world_size > 1]
    if not runs:
        return None
    for m in runs:
        if m.params_sha256 is None:
            return verdict("FAIL", "agreement", cell, f"seed {m.seed}: the ranks ended with different parameters")
    return verdict("PASS", "agreement", cell, f"all ranks of {plural(len(runs), 'run')} ended with the same bits")
