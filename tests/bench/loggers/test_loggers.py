"""Loggers: what they write is read back with their own packages; what goes wrong with them is a note."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench import loggers
from bench.dashboard import tree
from bench.loggers import RunInfo
from bench.loggers import process as beside
from bench.loggers.recorded import recorded
from bench.results.runfolder import CONFIG, METRICS, find_runs
from tests.bench.conftest import Bench
from tests.bench.streams import make_spec, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = write_run(tmp_path / "runs", make_spec())
    Image.new("RGBA", (4, 3), "red").save(place / "timeline.png")
    (place / "report.md").write_text("# it")
    (place / CONFIG).write_text(
        json.dumps({"run_id": "it", "policy": {"anchor": 10}, "cluster": {"speeds": [1.0, 0.5]}})
    )
    return place


def log(name: str, folder: Path, output: Path) -> None:
    logger: loggers.Logger = importlib.import_module(loggers.LOGGERS[name])
    logger.write(recorded(folder), output)


def test_what_is_logged_is_what_is_recorded(folder: Path) -> None:
    run = recorded(folder)
    metrics = find_runs(folder)[0][0].metrics
    series: dict[str, list[float]] = {}
    for scalar in run.scalars:
        series.setdefault(scalar.name, []).append(scalar.value)
    assert series["train/loss"] == [epoch.train_loss for epoch in metrics.epochs]
    assert series["eval/accuracy"] == [epoch.eval for epoch in metrics.epochs]
    assert series["final/accuracy"] == [metrics.final.eval]
    assert series["final/rank1_samples_per_s"] == [metrics.throughput.per_rank[1]]
    assert metrics.elche is not None
    assert series["schedule/anchor"] == [plan.anchor for plan in metrics.elche.plans]
    within = [scalar for scalar in run.scalars if scalar.name == "train/loss_within_epochs"]
    assert len(within) > len(metrics.epochs)
    assert [scalar.step for scalar in within] == sorted(scalar.step for scalar in within)
    assert {"train/lr", "train/samples_per_s", "rank0/samples_per_s", "rank1/share"} <= series.keys()
    assert run.params == {"run_id": "it", "policy.anchor": "10", "cluster.speeds": "[1.0, 0.5]"}


def test_nothing_of_a_run_that_went_on_is_logged_behind_its_end(folder: Path) -> None:
    """Its epochs are timed since its first launch, its total since the last one."""
    body = json.loads((folder / METRICS).read_text())
    body["time_s"]["total"] = body["epochs"][-1]["seconds"] / 4
    (folder / METRICS).write_text(json.dumps(body))
    run = recorded(folder)
    last = max(scalar.seconds for scalar in run.scalars)
    assert last > body["time_s"]["total"]
    assert run.began + last == pytest.approx((folder / METRICS).stat().st_mtime)
    assert {scalar.seconds for scalar in run.scalars if scalar.name.startswith("final/")} == {last}


def test_a_run_that_was_not_timed_logs_no_speed(folder: Path) -> None:
    timed = {scalar.name for scalar in recorded(folder).scalars}
    place = folder / "metrics.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"timing": False}))
    untimed = {scalar.name for scalar in recorded(folder).scalars}
    speeds = {"train/samples_per_s", "final/samples_per_s", "final/rank0_samples_per_s", "rank1/step_ms"}
    assert speeds <= timed - untimed
    assert untimed >= {"train/loss", "final/accuracy", "rank1/share"}


def test_tensorboard_reads_its_event_files_back(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for _ in range(2):  # a rerun replaces
        log("tensorboard", folder, tmp_path / "runs")
    (path,) = (folder / "tensorboard").iterdir()
    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    run = recorded(folder)
    for name in {scalar.name for scalar in run.scalars}:
        ours = [(scalar.step, pytest.approx(scalar.value, rel=1e-6)) for scalar in run.scalars if scalar.name == name]
        assert [(event.step, event.value) for event in events.Scalars(name)] == ours
    (picture,) = events.Images("timeline")
    assert (picture.width, picture.height) == (4, 3)
    start, end = (
        HParamsPluginData.FromString(events.SummaryMetadata(f"_hparams_/session_{name}_info").plugin_data.content)
        for name in ("start", "end")
    )
    assert start.session_start_info.hparams["policy.anchor"].number_value == 10
    assert start.session_start_info.hparams["run_id"].string_value == "it"
    assert end.session_end_info.status == 1  # success
    (said,) = events.Tensors("configuration")
    assert "| policy.anchor | 10 |" in said.tensor_proto.string_val[0].decode()


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard finds in a run folder, by name."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        name: [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_run_once_with_parameters_and_series(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):
        log("mlflow", folder, tmp_path / "runs")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "runs" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("mlp")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    metrics = find_runs(folder)[0][0].metrics
    assert run.info.status == "FINISHED"
    assert run.data.params["policy.anchor"] == "10"
    assert run.data.metrics["final/accuracy"] == metrics.final.eval
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(e.epoch + 1, e.train_loss) for e in metrics.epochs]
    found = (
        [run.path for run in find_runs(tmp_path / "runs")[0]],
        [place.folder for place in tree.scan(tmp_path / "runs").values()],
    )
    assert found == ([folder], [folder])  # the copies in its store counted as runs, too
    assert run.data.tags["bench.faults"] == str(len(metrics.faults))
    assert run.data.tags["mlflow.source.git.commit"] == metrics.git["sha"]
    kinds = [kind.path for kind in client.list_artifacts(run.info.run_id)]
    kept = {file.path for kind in kinds for file in client.list_artifacts(run.info.run_id, kind)}
    assert {"run/config.json", "run/metrics.json", "report/report.md", "pictures/timeline.png"} <= kept


def test_wandb_is_offline_and_gets_everything_in_the_order_of_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a double of the package, which is large and a service's; the real one below, where it is installed."""
    asked: dict[str, Any] = {}
    made: list[Any] = []
    rows: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
    artifacts: list[Any] = []
    ends: list[int] = []

    class Run:
        def __init__(self) -> None:
            self.summary: dict[str, float] = {}
            made.append(self)

        def __enter__(self) -> Run:
            return self

        def __exit__(self, *_: object) -> None: ...

        def define_metric(self, *_: object, **__: object) -> None: ...

        def log(self, row: dict[str, Any]) -> None:
            (rows if "seconds" in row else pictures).append(row)

        def log_artifact(self, artifact: Any) -> None:
            artifacts.append(artifact)

        def finish(self, exit_code: int) -> None:
            ends.append(exit_code)

    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            self.name, self.files = name, list[str]()

        def add_file(self, file: str) -> None:
            self.files.append(Path(file).name)

    def init(**settings: Any) -> Run:
        asked.update(settings)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Image=str, Artifact=Artifact))
    monkeypatch.delitem(sys.modules, "bench.loggers.wandb_offline", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    log("wandb", folder, tmp_path)
    assert (asked["mode"], asked["dir"]) == ("offline", str(folder))
    assert asked["config"]["policy.anchor"] == 10
    assert asked["config"]["run.git.commit"] == find_runs(folder)[0][0].metrics.git["sha"]
    assert "nccl_cadence" in asked["tags"]
    assert pictures == [{"pictures/timeline": str(folder / "timeline.png")}]
    assert {"config.json", "metrics.json", "report.md", "timeline.png"} <= set(artifacts[0].files)
    assert [row["seconds"] for row in rows] == sorted({row["seconds"] for row in rows})
    assert sum(len(row) - 1 for row in rows) == len({(s.seconds, s.name) for s in recorded(folder).scalars})
    assert "final/accuracy" in made[0].summary
    metrics = json.loads((folder / METRICS).read_text())
    (folder / METRICS).write_text(json.dumps(metrics | {"status": "failed"}))
    log("wandb", folder, tmp_path)
    assert ends == [0, 1], "a failed run is a failed run of wandb"
    sys.modules.pop("bench.loggers.wandb_offline")


def test_wandb_itself(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    log("wandb", folder, tmp_path)
    assert list((folder / "wandb").glob("offline-run-*"))


def test_what_cannot_be_chosen_is_said_before_anything_starts(
    quiet: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mlflow" else there(name, *more)
    )
    assert quiet("model=mlp", "mode=solo", "logger=[tensorboard,mlflow]") == 2
    assert "pip install mlflow" in capsys.readouterr().err
    assert quiet("model=mlp", "mode=solo", "logger=tensorbord") == 2
    assert "did you mean 'tensorboard'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert loggers.chosen("none") == loggers.chosen([]) == loggers.chosen(None) == ()


def test_a_logger_changes_no_run_and_its_failure_is_a_note(
    quiet: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_BAD_LOGGER", "raise")
    monkeypatch.setitem(loggers.LOGGERS, "mlflow", "tests.bench.loggers.bad_logger")
    assert quiet("model=mlp", "mode=solo", "logger=[mlflow,tensorboard]", "output=with") == 0
    told = " ".join(capsys.readouterr().out.split())
    failed = (
        r"note: logger mlflow failed \(\S*bad_logger\.py:\d+: ZeroDivisionError: division by zero\); the run folder has"
    )
    assert re.search(failed, told), told
    assert quiet("model=mlp", "mode=solo", "output=without") == 0
    ((one,), _), ((other,), _) = find_runs(tmp_path / "with"), find_runs(tmp_path / "without")
    assert (one.config, one.metrics.run_id) == (other.config, other.metrics.run_id)
    assert scalars_in(one.path)["train/loss"] == [(e.epoch + 1, e.train_loss) for e in one.metrics.epochs]


@pytest.mark.parametrize(
    ("how", "said"), [("die", "failed (it ended with code 3)"), ("hang", "failed (it did not end within 0.5 s)")]
)
def test_a_logger_that_dies_or_hangs_is_not_waited_for(
    how: str, said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_BAD_LOGGER", how)
    monkeypatch.setitem(loggers.LOGGERS, "mlflow", "tests.bench.loggers.bad_logger")
    if how == "hang":
        monkeypatch.setattr(beside, "ENDING_S", 0.5)
    with beside.LoggerProcesses(
        ("mlflow",), tmp_path / "making", tmp_path, RunInfo("m", "solo", "r", "h", 1, "accuracy")
    ) as it:
        process = it._processes["mlflow"]
        (note,) = it.end(folder)
    assert said in note
    assert process.returncode is not None
