"""Every run of the cell ended `ok`. If some diverged, `diverged` judges whether they are too many, if there is a
reference."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench.base.exitcodes import Exit
from bench.base.grouping import grouped
from bench.base.number_format import plural
from bench.results.analysis.faults import BEGAN_ANEW, unscripted, went_on
from bench.results.cells import Cell
from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.records.reading import costly
from bench.validate.records.run_records import Records
from bench.validate.rules.unheeded import unheeded
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.core.settings.faults import Fault, parse

_EXITED = re.compile(r"\(exit code (?!255\))\d+\)")
"""Pattern of the text of a loss if the process exited by itself; code 255 stands for an unknown end."""
TAKING = ("crash", "raise", "stall")
"""Kinds of scripted faults that always cost the rank."""
UNSEEN = ("lose", "flip")
"""Kinds of scripted faults that may leave no other trace in the records."""
BEYOND, UNREPORTED, FEW = 1, 4, 256
"""Steps that a lost rank may report beyond its fault; and steps that it may leave unreported: so many times its largest
report, and a constant."""


def check(case: Case) -> Verdict:
    """Return FAIL if a run did not end well: a regression if it diverged and there is no reference, else a failed run.

    A run that went on after losing a rank ended well, and the line says so. It fails, though, if the rank raised and no
    script made it raise (a defect of the program), if a rank violated its orders, if a scripted fault never came, or if
    the configuration tolerates no loss. SUSPICIOUS if a rank's process exited by itself: lack of memory may cause that.
    """
    cell, read = case.cell, partial(case.derivation.value, _of_ranks, lost=True)
    counted = ("ok", "diverged") if case.match is not None else ("ok",)
    bad = [run.metrics for run in cell.runs if run.metrics.status not in counted]
    settings = partial(case.derivation.value, unheeded, lost=True)
    wrongs = (_unallowed(run, read) or _ignored(run, settings) for run in (() if bad else cell.runs))
    if wrong := next(filter(None, wrongs), ""):
        return verdict("FAIL", "status", cell, f"{cell.status}; {wrong}", Exit.FAILED)
    if not bad:
        errors = "".join(f"seed {m.seed}: {line}; " for m in cell.bereft for line in unscripted(m))
        line = f"{errors}{cell.status}{_losses(cell, read)}"
        if not errors and (ended := next(filter(None, map(_ended, cell.ok)), "") or _earlier(cell, read)):
            return verdict("SUSPICIOUS", "status", cell, f"{ended}; {cell.status}")
        return verdict("FAIL" if errors else "PASS", "status", cell, line, Exit.FAILED if errors else None)
    diverged = all(metrics.status == "diverged" for metrics in bad)
    line = f"{cell.status}; seed {bad[0].seed}: {bad[0].error or 'no reason recorded'}"
    return verdict("FAIL", "status", cell, line, Exit.REGRESSION if diverged else Exit.FAILED)


class _OfRanks(NamedTuple):
    """What ranks recorded of their steps and of scripted faults."""

    others: bool
    """Ranks joined later, or the run was resumed."""
    steps: dict[int, list[int]]
    """Rank -> the steps of each of its reports."""
    met: dict[int, list[str]]
    """Rank -> the faults that it met, of ranks that say so."""


_Read = Callable[[Run], _OfRanks | None]


def _of_ranks(run: Run, known: Records) -> _OfRanks:
    steps = grouped((event.rank, event.steps) for event in known.progress)
    met = {event.rank: list(event.met) for event in known.finished if event.met is not None}
    return _OfRanks(bool(known.joined or known.resumed), steps, met)


def _unallowed(run: Run, read: _Read) -> str:
    """Name the loss that no machine causes, or that the configuration does not tolerate; empty: none. Reports that
    violate orders are a defect of the program, unless the rank joined later or a script takes something away."""
    m, cluster = run.metrics, run.config.get("cluster")
    if never := _never(run, read) or _as_lost(m):
        return f"seed {m.seed}: {never}"
    first = next(filter(went_on, m.faults), None)
    if m.status != "ok" or first is None or m.resumed is not None:
        return ""
    if first.kind == "dropped" and not costly(m) and first.rank not in m.begun_without:
        return f"seed {m.seed}: rank {first.rank} did not follow its orders and was dropped: {first.text:.200}"
    if isinstance(cluster, dict) and cluster.get("tolerate_loss") is False:
        return f"seed {m.seed}: the run went on without rank {first.rank}, although cluster.tolerate_loss is false"
    return ""


def _ignored(run: Run, settings: Callable[[Run], str | None]) -> str:
    """Name the setting for lost ranks that the run did not heed; empty: none."""
    wrong = settings(run) if run.metrics.faults else ""
    return f"seed {run.metrics.seed}: {wrong}" if wrong else ""


def _never(run: Run, read: _Read) -> str:
    """Name the scripted fault that never came, or came late, though its rank went beyond its step; empty: none."""
    lost = {row.rank for row in run.metrics.faults}
    for fault, steps, met in _others(run, read):
        if not met and steps > fault.step + BEYOND:
            return f"rank {fault.rank} trained {steps} steps, but the scripted {fault} never occurred"
    for fault, own in _taken(run, read):
        steps, gone = sum(own), fault.rank in lost
        if steps > fault.step + BEYOND * gone:
            came = "occurred later" if gone else "never occurred"
            return f"rank {fault.rank} trained {steps} steps, but the scripted {fault} {came}"
    return ""


def _as_lost(m: Metrics) -> str:
    """Name the rank that a script made raise, whose exception nobody heard of; empty: none."""
    raising = {fault.rank for fault in map(parse, m.scripted_faults) if fault.kind == "raise"}
    killing = {fault.rank for fault in map(parse, m.scripted_faults) if fault.kind in TAKING and fault.kind != "raise"}
    for row in m.faults:
        if row.rank in raising - killing and row.kind == "lost" and "exit code 0)" in row.text:
            return f"rank {row.rank} raised an exception, but was recorded as lost: {row.text}"
    return ""


def _earlier(cell: Cell, read: _Read) -> str:
    """Name the rank that was lost long before the only fault of its script; a machine may have caused that."""
    for run in cell.runs:
        m = run.metrics
        for fault, own in _taken(run, read):
            if m.scripted_faults != [str(fault)] or fault.rank not in {row.rank for row in m.faults}:
                continue
            if fault.step - sum(own) > UNREPORTED * max(own, default=0) + FEW:
                behind = f"rank {fault.rank} was lost after the {sum(own)} steps that it reported"
                return f"seed {m.seed}: {behind}, though the script has {fault}"
    return ""


def _taken(run: Run, read: _Read) -> list[tuple[Fault, list[int]]]:
    """Return, for each rank, the first scripted fault that takes the rank away, and the steps of its reports; nothing
    for runs in which a rank was restarted."""
    m = run.metrics
    taking = [fault for fault in map(parse, m.scripted_faults) if fault.kind in TAKING]
    again = _again(m) or any(row.rank is None or row.back_s is not None for row in m.faults)
    known = read(run) if taking and not again else None
    if known is None or known.others:
        return []
    first = {fault.rank: fault for fault in sorted(taking, key=lambda fault: -fault.step)}
    return [(f, known.steps.get(f.rank, [])) for f in first.values()]


def _again(m: Metrics) -> bool:
    """Return whether the records are of a part of the run's steps: ranks came later, or the run began again."""
    return bool(m.begun_without or m.resumed) or any(line.startswith(BEGAN_ANEW) for line in m.warnings)


def _ended(m: Metrics) -> str:
    """Name the rank whose process exited by itself in the middle of a run, if no script takes ranks away; empty:
    none."""
    rows = [] if costly(m) else [row for row in m.faults if _EXITED.search(row.text)]
    return f"seed {m.seed}: the process of rank {rows[0].rank} exited: {rows[0].text}" if rows else ""


def _losses(cell: Cell, read: _Read) -> str:
    losses = [
        f"seed {m.seed} {'' if fault.rank is None else f'lost rank {fault.rank} '}({fault.text}) and {fault.action}"
        for m in cell.ok
        for fault in m.faults
    ]
    losses += [
        f"seed {run.metrics.seed}: {fault} {'occurred' if came else 'never occurred'} in {plural(steps, 'step')}"
        for run in cell.runs
        for fault, steps, came in _others(run, read)
        if fault.kind in UNSEEN or not came
    ]
    return "".join(f"; {loss}" for loss in losses)


def _others(run: Run, read: _Read) -> list[tuple[Fault, int, bool]]:
    """Return the faults of the script, the steps of their ranks, and whether they came; of ranks that say so."""
    m = run.metrics
    script = [parse(text) for text in m.scripted_faults]
    known = read(run) if script and not _again(m) else None
    if known is None or known.others:
        return []
    return [
        (fault, sum(known.steps.get(fault.rank, ())), str(fault) in known.met[fault.rank])
        for fault in script
        if fault.rank in known.met
    ]
