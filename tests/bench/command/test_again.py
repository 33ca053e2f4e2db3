"""What is run again, audited, proved or estimated: nothing is called equal or known that was not compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.audit import audit_input
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command import cell_plan
from bench.command.cli import dispatch
from bench.command.verbs import audit_command
from bench.command.verbs.audit_command import show
from bench.command.verbs.plan_command import estimate
from bench.command.verbs.rerun import compare
from bench.config.config_checks import Machine
from bench.results.audit_file import AuditItem, AuditReport
from bench.results.runfolder import Run, find_runs
from ddp.core.errors import RankLost
from tests.bench import fake_engine
from tests.bench.conftest import Bench
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


def test_a_run_whose_ranks_began_anew_is_trained_again_in_the_same_way(
    quiet: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said to fail now: the rank that a fault had ended was not started again."""
    ends = [RankLost("rank 1: its process is gone (killed by signal 9)")]

    def misbehave(how: str) -> None:
        if ends:
            raise ends.pop()

    assert quiet("model=mlp", "mode=zero1", "train.epochs=1", "cluster.restart=always") == 0
    (run,) = find_runs(Path("runs"))[0]
    monkeypatch.setattr(fake_engine, "misbehave", misbehave)
    assert dispatch(["rerun", str(run.path)]) == 0
    assert "EQUAL" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["device=cuda", "transport=nccl", "transport=memory", "device=cpu"])
def test_an_audit_needs_no_machine_that_could_train_the_run(
    quiet: Bench, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Of a run on GPUs it was refused on a host without."""
    gpus = 0 if "memory" in word else 2
    monkeypatch.setattr(cell_plan, "this_machine", lambda hosts=1: Machine(2, gpus, hosts))
    assert quiet("model=mlp", "mode=nccl_sync", "train.epochs=1", f"cluster.{word}") == 0
    (run,) = find_runs(Path("runs"))[0]

    def order_of(plan: Any, *found: Any) -> None:
        raise ValueError(f"planned {plan.spec.run_id}")

    monkeypatch.setattr(audit_input, "order_of", order_of)
    for there in (0, 2):
        monkeypatch.setattr(cell_plan, "this_machine", lambda hosts=1, there=there: Machine(2, there, hosts))
        with pytest.raises(UsageError, match=f"planned {run.metrics.run_id}"):
            audit_command._audited(run)


def test_an_unknown_option_of_prove_is_no_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["prove", "model=mlp", "mode=solo", "--stepz", "3"]) == Exit.USAGE
    assert "unknown option '--stepz'; did you mean '--steps'?" in capsys.readouterr().err


def test_a_folder_of_presets_is_no_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment").mkdir()
    assert dispatch(["prove", "model=mlp", "mode=solo", "--config-dir", str(tmp_path), "experiment=mine"]) == Exit.USAGE
    assert "mine" in capsys.readouterr().err
    assert dispatch(["prove", str(tmp_path), "model=mlp"]) == Exit.USAGE
    assert "a run of a script is proved by itself" in capsys.readouterr().err
