"""What a prediction is made from, and what a predicted folder says of itself."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.predict.evidence import CalibratedRun, apart, grouped, own_cell
from bench.predict.folder import write_run
from bench.predict.play import play
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate.verdicts.verdict import verdict
from ddp.core.messages.events import Averaged, Merged, Progress
from ddp.core.network.links import parse
from tests.predict.measured import run_of
from tests.predict.test_predict import calibration

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.timeline.draw", lambda *picture: None)


def test_a_run_given_twice_counts_once(tmp_path: Path, capsys: Said) -> None:
    """Two copies of one run gave an interval of no width."""
    run = run_of(calibration(), tmp_path / "runs")
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    assert dispatch(["predict", str(run), str(run), str(copy), "--output", "none"]) == Exit.OK
    said = capsys.readouterr().out
    assert [line.split(": ")[0] for line in said.splitlines()[:2]] == [f"left out {run}", f"left out {copy}"]
    assert "| unknown: one run |" in said


def trained(tree: Path, ranks: int = 2, mode: str = "nccl_cadence", **changes: Any) -> Path:
    """A run; `changes`: of its configuration, by group."""
    own = calibration((0.01,) * ranks, mode=mode)
    return run_of(replace(own, spec=replace(own.spec, config=own.spec.config | changes)), tree)


@pytest.mark.parametrize(
    ("changes", "mode", "said"),
    [
        ({"train": {"batch_size": 8}}, "nccl_sync", "train.batch_size=8, but {} has train.batch_size=16"),
        ({"recipe": "full"}, "nccl_sync", "recipe=full"),
        ({"cluster": {"speeds": [], "step_s": 0.5}}, "nccl_sync", "cluster.step_s=0.5, but {} has cluster.step_s=0"),
        ({}, "cpu_async", "backend=cpu, but {} has backend=nccl"),
        ({"checkpoint": {"every": 1, "unit": "averages"}}, "nccl_sync", "checkpoint.unit=averages"),
        ({"loader": {"kind": "streaming"}}, "nccl_sync", "loader.kind=streaming"),
        ({"profile": {"steps": 5}}, "nccl_sync", "profile.steps=5"),
        ({"cluster": {"speeds": [], "compare": 7}}, "nccl_sync", "cluster.compare=7, but {} has cluster.compare=0"),
        (
            {"policy": {"name": "cadence", "anchor": 7}},
            "nccl_cadence",
            "policy.anchor=7, but {} has policy.anchor=null",
        ),
    ],
)
def test_runs_of_different_configurations_are_not_mixed(
    changes: dict[str, Any], mode: str, said: str, tmp_path: Path, capsys: Said
) -> None:
    """One table had rows of both."""
    alike = {"recipe": "quick", "train": {"batch_size": 16}, "checkpoint": {"every": 1, "unit": "epochs"}}
    first = trained(tmp_path / "a", **alike)
    other = trained(tmp_path / "b", 3, mode, **alike | changes)
    assert dispatch(["predict", str(first), str(other), "--ranks", "2,3", "--output", "none"]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{other}: {said.format(first)}" in error


def test_runs_of_other_transports_checkpoints_or_audits_are_no_repetitions() -> None:
    """They were runs of one cell, and their difference was its scatter."""
    own = calibration()
    changes: list[dict[str, Any]] = [{"checkpoint": {"every": 0}}, {"audit": False}]
    others = [replace(own, spec=replace(own.spec, config=own.spec.config | change)) for change in changes]
    runs = [CalibratedRun(each, 1.0) for each in (own, replace(own, transport="memory"), *others, own)]
    assert [apart(each, runs[0]) for each in runs] == [
        None,
        ("cluster.transport", "memory", "gloo"),
        ("checkpoint.every", "0", "null"),
        ("audit", "false", "null"),
        None,
    ]
    assert [len(cell.runs) for cell in grouped(runs)] == [2, 1, 1, 1]


def test_a_run_that_nothing_is_predicted_from_is_said(tmp_path: Path, capsys: Said) -> None:
    """It was shown as calibrated on. One with other ranks shows the error of predictions; data may lie elsewhere."""
    runs = [trained(tmp_path / "a", data={"dir": "/a"}), trained(tmp_path / "b", 3, data={"dir": "/b"})]
    sync = trained(tmp_path / "c", mode="nccl_sync")
    words = [*map(str, [*runs, sync]), "--output", "none"]
    assert dispatch(["predict", *words]) == Exit.OK
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if "left out" in line] == [
        f"left out {sync}: no cell is predicted from it; the runs of a policy nearest in ranks count"
    ]
    assert said.count("calibrated on") == 2
    assert dispatch(["predict", *words, "--policies", "all"]) == Exit.OK
    assert "left out" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["partition_ratios", "speed_hint"])
def test_settings_of_each_rank_are_of_their_number_alone(name: str, tmp_path: Path, capsys: Said) -> None:
    """Another number of ranks was a traceback."""
    run = trained(tmp_path, policy={"name": "cadence", name: [0.6, 0.4]})
    assert dispatch(["predict", str(run), "--ranks", "2,4", "--output", "none"]) == Exit.OK
    said = capsys.readouterr().out
    assert said.count(f"other settings of the policy: {name}\n") == 1
    assert "other settings of the policy" not in said.partition("×4")[0]


@pytest.mark.parametrize("source", ["predicted", "virtual"])
def test_only_measured_runs_are_predicted_from(source: str, tmp_path: Path, capsys: Said) -> None:
    """A predicted folder was calibrated on as if it had been measured."""
    own = calibration()
    folder = write_run(own_cell(own), own, play(own_cell(own), own, 0), tmp_path)
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace('"source":"predicted"', f'"source":"{source}"'))
    assert dispatch(["predict", str(folder), "--output", "none"]) == Exit.USAGE
    assert f"its source is {source}, so its times were not measured: give a real run" in capsys.readouterr().err
    assert dispatch(["explain", str(folder)]) == Exit.OK
    assert f"- its source is {source}" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["nccl_cadence", "nccl_sync", "cpu_async"])
def test_a_prediction_over_links_with_jitter_is_sound(mode: str, tmp_path: Path, capsys: Said) -> None:
    """Reports of steps were dated by their arrival, so two came closer together than the steps between them took."""
    own = calibration((0.01, 0.02), mode=mode)
    cell = replace(own_cell(own), links=parse("home_100m", 2))
    played = play(cell, own, 0)
    write_run(cell, own, played, tmp_path)
    assert dispatch(["validate", str(tmp_path), "--only", "breakdown"]) == Exit.OK
    said = capsys.readouterr().out
    assert "breakdown: the fractions" in said
    assert "predicted: 1 of 1 run: nothing was trained" in said
    heard = {record.at for _, record in played.records if isinstance(record, Progress | Averaged)}
    merged = [record.at for _, record in played.records if isinstance(record, Merged)]
    assert merged, "what a replay of the records must give again"
    assert heard >= set(merged)


def test_no_command_reproduces_a_prediction(tmp_path: Path) -> None:
    """A FAIL of a predicted run ended with a command that trains a real one."""
    own = calibration()
    write_run(own_cell(own), own, play(own_cell(own), own, 0), tmp_path)
    (cell,) = cells(find_runs(tmp_path)[0])
    assert verdict("FAIL", "breakdown", cell, "why").text == "why"
    assert dispatch(["report", str(tmp_path), "--out", str(tmp_path / "report")]) == Exit.OK
    assert "# Reproduce" not in (tmp_path / "report" / "report.md").read_text()
