"""The verb `audit`: recomputes the steps that the ranks of a finished run kept, for one run or a tree of runs, and
writes `audit.json` anew."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.base.exitcodes import Exit, gravest
from bench.base.number_format import plural
from bench.base.usage import UsageError, usage, writing
from bench.config.user_parts import changed
from bench.results.audit_file import FOLDER, UNAUDITED, AuditReport, read, write_report
from bench.results.runfolder import CONFIG, Run, find_runs, read_object, read_records
from ddp.core.messages.events import Finished


def audit(path: Path) -> Exit:
    """Audit a finished run, or each run in a tree. Return exit code 1 if a result differs, 4 if no step can be
    recomputed, 5 if the audit itself failed; for several runs, the worst code."""
    with usage():
        runs, problems = find_runs(path)
    if not runs or runs[0].path == path:
        return _audit(path)
    for problem in problems:
        print(f"REFUSED    {problem}")
    codes = [Exit.REFUSED] if problems else []
    for run in runs:
        try:
            codes.append(_audit(run.path))
        except UsageError as error:
            print(f"REFUSED    {error}")
            codes.append(Exit.REFUSED)
    return gravest(codes)


def _audit(folder: Path) -> Exit:
    from bench.command.verbs.rerun import run_in

    with usage():
        run = run_in(folder)
        if run.metrics.status != "ok":
            raise UsageError(f"{folder}: it ended {run.metrics.status}, and only finished runs are audited")
        kept = [file for record in read_records(folder) if isinstance(record, Finished) for file in record.kept]
    if not kept:
        why = next((line for line in run.metrics.warnings if line.startswith(UNAUDITED)), None)
        print(f"REFUSED    {folder}: {why or 'its ranks kept nothing (audit=off, or an earlier version)'}")
        return Exit.REFUSED
    from bench.audit.process import Unaudited

    try:
        fresh = _script_audited(run) if run.config.get("script") else _audited(run)
    except Unaudited as error:
        print(f"FAILED     {folder}: the audit failed: {error.why}")
        if (text := str(error)) != error.why:
            print(text, file=sys.stderr)
        return Exit.FAILED
    report = _beside(fresh, folder)
    with usage(), writing(f"audit.json to {folder}"):
        write_report(folder, report, run.metrics)
    return show(folder, report, fresh.count("equal", "step"))


def _audited(run: Run) -> AuditReport:
    """Audit a run of a registered model."""
    from bench.audit.audit_input import order_of
    from bench.audit.process import AuditProcess
    from bench.command.cell_plan import make_plan
    from bench.runner.saved_config import config_of

    folder = run.path
    with usage():
        saved = read_object(folder / CONFIG)
        config, resized = config_of(saved, folder), saved.get("resized") or ()
        if not isinstance(resized, (list, tuple)):
            raise ValueError(f"{folder / CONFIG}: resized is no list")
        plan = make_plan(config, resized=resized, trained=True)
        if plan.spec.run_id != run.metrics.run_id:
            why = changed(run.config, plan.spec.config)
            raise UsageError(f"{folder}: this version makes another run of its configuration ({plan.spec.run_id}){why}")
        order = order_of(plan, run.metrics, list(read_records(folder)), folder / FOLDER)
    with AuditProcess(order, plan.job.preload) as process:
        return process.report()


def _script_audited(run: Run) -> AuditReport:
    """Audit a run of a script, through that script."""
    from bench.runner.script_again import audit_script

    with usage(), tempfile.TemporaryDirectory(prefix="bench-audit-", ignore_cleanup_errors=True) as folder:
        return audit_script(run, Path(folder))


def _beside(report: AuditReport, folder: Path) -> AuditReport:
    """Return the report, completed by the outcomes of an earlier audit for files that have been deleted since."""
    try:
        earlier = read(folder)
    except ValueError:
        return report
    gone = {file for item in report.items if item.outcome == "skipped" for file in item.files}
    if earlier.run_id != report.run_id or sorted(earlier.kept) != sorted(report.kept):
        return report
    items = [item for item in report.items if item.outcome != "skipped" or not gone.issuperset(item.files)]
    return report.model_copy(update={"items": items + [item for item in earlier.items if gone & set(item.files)]})


def show(folder: Path, report: AuditReport, now: int | None = None) -> Exit:
    """Print an audit's outcome; return the exit code. `now`: equal steps of this audit, without those of an earlier one;
    None: all of the report."""
    for item in report.items:
        if item.outcome == "different":
            print(f"DIFFERENT  {item}")
    steps, skipped = report.count("equal", "step"), [item for item in report.items if item.outcome == "skipped"]
    rest = f"; {len(skipped)} skipped: {skipped[0].line}" if skipped else ""
    if report.count("different"):
        return Exit.REGRESSION
    if not steps:
        print(f"REFUSED    {folder}: no step was recomputed{rest}")
        return Exit.REFUSED
    evaluated = " and the evaluation" if report.count("equal", "evaluation") else ""
    known = "" if now in (None, steps) else f" ({now} repeated now, the others in an earlier audit)"
    print(f"EQUAL      {folder}: {plural(steps, 'step')}{evaluated} are as they were{known}{rest}")
    return Exit.OK
