"""Every run of the cell ended `ok`; of those that diverged `diverged` says whether they are too many, where it can."""

from __future__ import annotations

import re
from collections import Counter

from bench.base.exitcodes import Exit
from bench.base.number_format import plural
from bench.results.analysis.faults import unscripted, went_on
from bench.results.cells import Cell
from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.findings import Case
from bench.validate.records import costly, records
from bench.validate.verdict import Verdict, verdict
from ddp.core.faults import Fault, parse

_EXITED = re.compile(r"\(exit code (?!255\))\d+\)")
"""How a loss reads of a process that no signal ended; 255: how it ended nobody knows."""
TAKING = ("crash", "raise", "stall")
"""Kinds of faults that always cost the rank."""
UNSEEN = ("lose", "flip")
"""Kinds of which nothing else need tell."""
BEYOND, UNREPORTED, FEW = 1, 4, 256
"""Steps by which a lost rank may have gone beyond its fault; times the most steps of a report, and steps, that it may
not have reported."""


def check(case: Case) -> Verdict:
    """Return FAIL if a run did not end well: a regression if it diverged, and nothing else counts that; else a failed run.
    One that went on without a rank that it had lost ended well, and is judged as any other; the line says so. But where the
    rank had raised, and no script made it, the program has a defect, which the others' luck does not mend.
    FAIL, too, if a rank did not do as ordered, or no loss was to be tolerated. SUSPICIOUS if its program ended by itself: no
    machine does that, but one that is short of memory may bring it about."""
    cell = case.cell
    counted = ("ok", "diverged") if case.match is not None else ("ok",)
    bad = [run.metrics for run in cell.runs if run.metrics.status not in counted]
    if not bad and (wrong := next(filter(None, map(_unallowed, cell.runs)), "")):
        return verdict("FAIL", "status", cell, f"{cell.status}; {wrong}", Exit.FAILED)
    if not bad:
        errors = "".join(f"seed {m.seed}: {line}; " for m in cell.bereft for line in unscripted(m))
        line = f"{errors}{cell.status}{_losses(cell)}"
        if not errors and (ended := next(filter(None, map(_ended, cell.ok)), "") or _earlier(cell)):
            return verdict("SUSPICIOUS", "status", cell, f"{ended}; {cell.status}")
        return verdict("FAIL" if errors else "PASS", "status", cell, line, Exit.FAILED if errors else None)
    diverged = all(metrics.status == "diverged" for metrics in bad)
    line = f"{cell.status}; seed {bad[0].seed}: {bad[0].error or 'no reason recorded'}"
    return verdict("FAIL", "status", cell, line, Exit.REGRESSION if diverged else Exit.FAILED)


def _unallowed(run: Run) -> str:
    """Say which loss of a rank is none of a machine's, or not one to be tolerated; empty: none. Reports that do not fit
    orders are a program's, but behind another loss, of a rank that came later, and where a script takes something away."""
    m, cluster = run.metrics, run.config.get("cluster")
    if never := _never(run):
        return f"seed {m.seed}: {never}"
    first = next(filter(went_on, m.faults), None)
    if m.status != "ok" or first is None or m.resumed is not None:
        return ""
    if first.kind == "dropped" and not costly(m) and first.rank not in m.late:
        return f"seed {m.seed}: rank {first.rank} did not do as ordered, and was given up: {first.text:.200}"
    if isinstance(cluster, dict) and cluster.get("tolerate_loss") is False:
        return f"seed {m.seed}: the run went on without rank {first.rank}, and cluster.tolerate_loss is false"
    return ""


def _never(run: Run) -> str:
    """Say which fault of the script never came, though its rank went through the step, or came behind it."""
    lost = {row.rank for row in run.metrics.faults}
    for fault, steps, met in _others(run):
        if not met and steps > fault.step + BEYOND:
            return f"rank {fault.rank} trained {steps} steps, and {fault} of the script never came"
    for fault, own in _taken(run):
        steps, gone = sum(own), fault.rank in lost
        if steps > fault.step + BEYOND * gone:
            came = "came later" if gone else "never came"
            return f"rank {fault.rank} trained {steps} steps, and {fault} of the script {came}"
    return ""


def _earlier(cell: Cell) -> str:
    """Say which rank was lost long before the only fault of its script, as a machine may bring it about."""
    for run in cell.runs:
        m = run.metrics
        for fault, own in _taken(run):
            if m.scripted_faults != [str(fault)] or fault.rank not in {row.rank for row in m.faults}:
                continue
            if fault.step - sum(own) > UNREPORTED * max(own, default=0) + FEW:
                behind = f"rank {fault.rank} was lost behind {sum(own)} steps that it reported"
                return f"seed {m.seed}: {behind}, and {fault} is in the script"
    return ""


def _taken(run: Run) -> list[tuple[Fault, list[int]]]:
    """Return the first fault of each rank's script that takes it away, and the steps of its reports; nothing of runs in
    which somebody was started again."""
    m = run.metrics
    taking = [fault for fault in map(parse, m.scripted_faults) if fault.kind in TAKING]
    again = m.late or m.resumed or any(row.rank is None or row.back_s is not None for row in m.faults)
    known = records(run, lost=True) if taking and not again else None
    if known is None or known.joined or known.resumed:
        return []
    first = {fault.rank: fault for fault in sorted(taking, key=lambda fault: -fault.step)}
    return [(f, [event.steps for event in known.progress if event.rank == f.rank]) for f in first.values()]


def _ended(m: Metrics) -> str:
    """Say which rank's process ended by itself in the middle of a run, if no script took it away; empty: none."""
    rows = [] if costly(m) else [row for row in m.faults if _EXITED.search(row.text)]
    return f"seed {m.seed}: the program of rank {rows[0].rank} ended: {rows[0].text}" if rows else ""


def _losses(cell: Cell) -> str:
    losses = [
        f"seed {m.seed} {'' if fault.rank is None else f'lost rank {fault.rank} '}({fault.text}) and {fault.action}"
        for m in cell.ok
        for fault in m.faults
    ]
    losses += [
        f"seed {run.metrics.seed}: {fault} {'came' if came else 'never came'} in {plural(steps, 'step')}"
        for run in cell.runs
        for fault, steps, came in _others(run)
        if fault.kind in UNSEEN or not came
    ]
    return "".join(f"; {loss}" for loss in losses)


def _others(run: Run) -> list[tuple[Fault, int, bool]]:
    """Return the faults of the script, the steps of their ranks, and whether they came; of ranks that say so."""
    m = run.metrics
    script = [parse(text) for text in m.scripted_faults]
    known = records(run, lost=True) if script and m.resumed is None and not m.late else None
    if known is None or known.joined or known.resumed:
        return []
    met = {event.rank: event.met for event in known.finished if event.met is not None}
    steps = Counter[int]()
    for event in known.progress:
        steps[event.rank] += event.steps
    return [(fault, steps[fault.rank], str(fault) in met[fault.rank]) for fault in script if fault.rank in met]
