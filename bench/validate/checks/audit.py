"""The audit recomputed the same values as the run: kept steps, the final evaluation, the initial model, the data.

The audit itself (`bench.audit`) needs torch and runs after training; it writes `audit.json`. This check reads that
file. It also compares the file's run id, the digest of its model, the digest of its records and its list of kept files
with those of the run.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.base.grouping import summed
from bench.base.number_format import plural
from bench.results import audit_file
from bench.results.audit_file import AuditReport
from bench.results.rerun_command import auditing
from bench.results.runfolder import Run, there
from bench.validate.records.reading import as_planned
from bench.validate.records.run_records import Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Name, Verdict, verdict

LONG = 64
"""Steps per rank from which on each half of a run must have kept a step."""
KeptFile = tuple[str, int, str]
"""Name, bytes and digest."""
GRAVEST: tuple[Name, ...] = ("FAIL", "REFUSED", "INCONCLUSIVE")


def check(case: Case) -> Verdict | None:
    """Return FAIL if a recomputed value differs, REFUSED if the audit is of another run, INCONCLUSIVE if a configured
    audit is missing or recomputed no step; None if no run was to be audited."""
    runs = [run for run in case.cell.runs if run.metrics.status == "ok" and run.config.get("audit") is True]
    if not runs:
        return None
    findings = {run.path: _judged(run, case.derivation.value(_kept_steps, run)) for run in runs}
    for name in GRAVEST:
        lines = [line for level, line, _ in findings.values() if level == name]
        if lines:
            more = f"; and {plural(len(lines) - 1, 'run')} more" if len(lines) > 1 else ""
            return verdict(name, "audit", case.cell, lines[0] + more)
    reports = [report for _, _, report in findings.values() if report is not None]
    return verdict("PASS", "audit", case.cell, _summary(reports))


class _KeptSteps(NamedTuple):
    """What ranks recorded that an audit must agree with."""

    steps: dict[int, int]
    """By rank."""
    kept: list[KeptFile]


def _kept_steps(run: Run, known: Records) -> _KeptSteps:
    steps = summed((event.rank, event.steps) for event in known.progress)
    return _KeptSteps(dict(steps), [(*file,) for event in known.finished for file in event.kept])


def _judged(run: Run, known: _KeptSteps | None) -> tuple[Name, str, AuditReport | None]:
    """Return the level, the reason and the report of a run's audit."""
    seed = f"seed {run.metrics.seed}"
    if not there(run.path / audit_file.AUDIT):
        return "INCONCLUSIVE", f"{seed} was not audited; audit it: {auditing(run.path)}", None
    try:
        report = audit_file.read(run.path)
    except ValueError as error:
        return "REFUSED", f"{seed}: {error}", None
    different = [item for item in report.items if item.outcome == "different"]
    if different:
        more = f"; {len(different)} of {len(report.items)} recomputed items differ" if len(different) > 1 else ""
        return "FAIL", f"{seed}, {different[0]}{more}", report
    if strange := _strange(run, report, known):
        return "REFUSED", f"{seed}: {strange}", report
    missing = [item for item in report.items if item.outcome == "skipped" and item.what == "step" and item.step is None]
    if missing:
        return (
            "INCONCLUSIVE",
            f"{seed}: {plural(len(missing), 'kept file')} lost before the audit: {missing[0].line}",
            report,
        )
    if not report.count("equal", "step"):
        why = next((item.line for item in report.items if item.what == "step"), "ranks kept no step")
        return "INCONCLUSIVE", f"{seed}: no step was recomputed: {why}", report
    if half := _unkept_half(run, report, known):
        return "INCONCLUSIVE", f"{seed}: no step of the {half} half of the run was kept", report
    return "PASS", "", report


def _unkept_half(run: Run, report: AuditReport, known: _KeptSteps | None) -> str:
    """Return the half of the run ("first" or "second") of which no step was kept; empty if there is none, or if the run
    is short, lost a rank or is in graph mode."""
    # In graph mode each step is a window.
    if known is None or not as_planned(run.metrics) or run.metrics.engine == "graph":
        return ""
    kept = [(item.rank, item.step) for item in report.items if item.what == "step" and item.step is not None]
    halves = {2 * step >= known.steps.get(rank, 0) for rank, step in kept if rank is not None}
    lacking = [name for later, name in ((False, "first"), (True, "second")) if later not in halves]
    return lacking[0] if lacking and min(known.steps.values(), default=0) >= LONG else ""


def _strange(run: Run, report: AuditReport, known: _KeptSteps | None) -> str:
    """Return why an audit is not of this run; empty if it is."""
    m = run.metrics
    if report.run_id != m.run_id:
        return f"audit.json belongs to run {report.run_id}"
    if None not in (report.params_sha256, m.params_sha256) and report.params_sha256 != m.params_sha256:
        return (
            f"audit.json is of model {str(report.params_sha256)[:12]}, the result has model {str(m.params_sha256)[:12]}"
        )
    sha256 = m.record.sha256 if m.record is not None else None
    if report.records_sha256 != sha256:
        return f"audit.json is of records {str(report.records_sha256)[:12]}, the result has {str(sha256)[:12]}"
    if known is not None and (lacking := sorted(set(known.kept) ^ set(report.kept))):
        return f"audit.json and events.jsonl list different kept files: {lacking[0][0]}"
    return ""


def _summary(reports: list[AuditReport]) -> str:
    steps = sum(report.count("equal", "step") for report in reports)
    evaluations = sum(report.count("equal", "evaluation") for report in reports)
    largest = max((item.largest or 0.0 for report in reports for item in report.items), default=0.0)
    skipped = [item for report in reports for item in report.items if item.outcome == "skipped"]
    line = (
        f"{plural(steps, 'step')} and {plural(evaluations, 'evaluation')} of {plural(len(reports), 'run')} were "
        f"recomputed and agree (largest difference: {largest:.2g} of the rounding tolerance)"
    )
    return line + (f"; {len(skipped)} skipped: {skipped[0].line}" if skipped else "")
