"""`bench audit TREE`: each run by itself, the worst exit code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.audit.process import Unaudited
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command import cli
from bench.command.verbs import audit_command
from bench.results.audit_file import AuditReport
from bench.results.runfolder import Run
from ddp.core.messages.events import Finished
from tests.bench.streams import make_records, make_spec, write_run


def test_each_run_of_a_tree_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "runs"
    equal, failed, different = (write_run(tree, make_spec("solo", seed=seed)) for seed in range(3))
    seen: list[Path] = []

    def audited(folder: Path) -> Exit:
        seen.append(folder)
        if folder == failed:
            raise UsageError(f"{folder}: it ended failed, and only finished runs are audited")
        return Exit.REGRESSION if folder == different else Exit.OK

    monkeypatch.setattr(audit_command, "_audit", audited)
    assert cli.dispatch(["audit", str(tree)]) == Exit.REGRESSION
    assert sorted(seen) == sorted([equal, failed, different])
    assert capsys.readouterr().out == f"REFUSED    {failed}: it ended failed, and only finished runs are audited\n"
    seen.clear()
    assert cli.dispatch(["audit", str(equal)]) == Exit.OK
    assert seen == [equal]
    (different / "metrics.json").write_text("{}")
    assert cli.dispatch(["audit", str(tree)]) == Exit.REFUSED
    assert "schema_version" in capsys.readouterr().out


def test_an_audit_that_fails_is_one_line_and_the_others_are_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a traceback, and called itself a defect."""
    first, second, third = (write_run(tmp_path, make_spec("solo", seed=seed)) for seed in range(3))
    finished = replace(
        next(r for r in make_records(make_spec("solo")) if isinstance(r, Finished)), kept=(("a", 1, "b"),)
    )
    monkeypatch.setattr(audit_command, "read_records", lambda folder: [finished])

    def audited(run: Run) -> AuditReport:
        if run.path != second:
            raise Unaudited("its process ended with exit code -9" if run.path == first else "ValueError: no\nTraceback")
        return AuditReport(run_id=run.metrics.run_id, seconds=0.1, kept=[], items=[])

    monkeypatch.setattr(audit_command, "_audited", audited)
    assert cli.dispatch(["audit", str(tmp_path)]) == Exit.FAILED
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"FAILED     {first}: the audit failed: its process ended with exit code -9",
        f"REFUSED    {second}: no step was recomputed",
        f"FAILED     {third}: the audit failed: ValueError: no",
    ]
    assert err.splitlines() == ["ValueError: no", "Traceback"]


def test_a_tree_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["audit", str(tmp_path)]) == Exit.USAGE
    assert "is not a run folder" in capsys.readouterr().err
