"""What is run again, audited, proved or estimated: nothing is called equal or known that was not compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.command.verbs.audit_command import show
from bench.command.verbs.plan_command import estimate
from bench.command.verbs.rerun import compare
from bench.results.audit_file import AuditItem, AuditReport
from bench.results.runfolder import Run
from tests.bench.streams import make_metrics, make_spec


def test_an_audit_that_repeated_no_step_is_not_equal(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = AuditItem(what="step", outcome="skipped", line="a is missing", files=["a"])
    report = AuditReport(run_id="r", seconds=0.1, kept=[("a", 1, "b")], items=[skipped])
    assert show(Path("r"), report) is Exit.REFUSED
    assert capsys.readouterr().out == "REFUSED    r: no step was recomputed; 1 skipped: a is missing\n"
    step = AuditItem(what="step", outcome="equal", line="x", files=["b"])
    assert show(Path("r"), report.model_copy(update={"items": [step, skipped]})) is Exit.OK
    assert "evaluation" not in capsys.readouterr().out
    assert show(Path("r"), report.model_copy(update={"items": [step]}), 0) is Exit.OK
    assert "1 step are as they were (0 repeated now, the others in an earlier audit)" in capsys.readouterr().out


def test_runs_without_a_model_are_not_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that failed again was called equal."""
    metrics = make_metrics(make_spec("solo")).model_copy(update={"params_sha256": None, "epochs": []})
    assert compare(Run(tmp_path, metrics), metrics) is Exit.INCONCLUSIVE
    assert "same bits" not in capsys.readouterr().out


@pytest.mark.parametrize("source", ["virtual", "predicted"])
def test_seconds_that_nobody_waited_are_no_estimate(source: str) -> None:
    spec = make_spec("solo")
    metrics = make_metrics(spec)
    assert estimate(spec, [metrics]).source != "a usual run"
    assert estimate(spec, [metrics.model_copy(update={"source": source})]).source == "a usual run"


def test_a_mode_is_proved_once_or_not_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a sweep only the first point was proved, and nothing was said of the others."""
    assert dispatch(["prove", "model=mlp", "mode=nccl_sync", "world_size=2", "seed=0,1"]) == Exit.USAGE
    said = "nccl_sync on 2 ranks is proved once: give the seed and each other setting one value"
    assert said in capsys.readouterr().err
