"""Loggers while a run lasts: they add what is settled, once, and end as those that are told at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from bench import loggers
from bench.loggers import RunInfo
from bench.loggers.follow import RunFollower
from bench.loggers.recorded import Begun, Recorded, Scalar, recorded
from bench.results.runfolder import CONFIG, EVENTS, METRICS
from bench.results.writer import RunWriter
from ddp.core.messages.events import Evaluated, Ready, Resumed
from ddp.core.messages.run_bounds import Launched
from ddp.process.codec import Record
from tests.bench.dashboard.dashboards import until
from tests.bench.loggers.test_loggers import scalars_in
from tests.bench.streams import LAUNCHED, lines, make_metrics, make_records, make_spec

if TYPE_CHECKING:
    from mlflow.entities import Run

SPEC = make_spec()
SAID = RunInfo(SPEC.model, SPEC.mode, SPEC.run_id, SPEC.config_hash, SPEC.world_size, "accuracy")


class Making:
    """A run folder in the making, which grows by epochs."""

    def __init__(self, output: Path) -> None:
        self.writer = RunWriter(output, SPEC.model, SPEC.mode, SPEC.run_id)
        self.folder = self.writer.path
        (self.folder / CONFIG).write_text("{}")
        self.records = [Launched(LAUNCHED), *make_records(SPEC)]
        self.written = list(lines(self.records))
        self.epoch = 0

    def grow(self) -> None:
        """One more epoch is over."""
        self.epoch += 1
        last = max(i for i, record in enumerate(self.records) if _of(record, self.epoch - 1))
        (self.folder / EVENTS).write_bytes(
            b"".join(line + b"\n" for line in self.written[: last + 1]) + b'{"type":"Pro'
        )

    def finish(self) -> Path:
        (self.folder / EVENTS).write_bytes(b"".join(line + b"\n" for line in self.written))
        (self.folder / METRICS).write_text(make_metrics(SPEC, self.records).model_dump_json())
        return self.writer.commit("ok")


def _of(record: Record, epoch: int) -> bool:
    return isinstance(record, Evaluated) and record.epoch == epoch


class Kept:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.added: list[Scalar] = []
        self.ended = False

    def begin(self, run: Begun, output: Path) -> Kept:
        return self

    def add(self, scalars: Sequence[Scalar]) -> None:
        self.added += scalars

    def end(self) -> None:
        self.ended = True

    def write(self, run: Recorded, output: Path, live: loggers.Live | None = None) -> Path:
        return run.folder


def test_what_is_added_while_it_lasts_is_what_the_result_says(tmp_path: Path) -> None:
    kept = Kept()
    early = RunFollower(kept, tmp_path / "not there yet", tmp_path, SAID)
    early.look()
    early.end(None)
    assert (kept.added, kept.ended, early.given_up) == ([], False, False)
    making = Making(tmp_path / "runs")
    following = RunFollower(kept, making.folder, tmp_path, SAID)
    for epoch in (1, 2, 3):
        following.look()
        making.grow()
        following.look()
        losses = [one for one in kept.added if one.name == "train/loss"]
        assert [one.step for one in losses] == list(range(1, epoch + 1))
    following.look()
    written = set(recorded(making.finish()).scalars)
    assert len(kept.added) == len(set(kept.added))
    assert set(kept.added) <= written
    later = {one.name.partition("/")[2] for one in written - set(kept.added)}
    assert {one.name for one in written - set(kept.added)}.isdisjoint(
        {"train/loss", "eval/accuracy", "schedule/anchor"}
    )
    assert "samples_per_s" in later, "stretches and final values come at the end"


def test_a_run_that_is_killed_leaves_what_there_was(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    making = Making(tmp_path / "runs")
    making.grow()
    code = (
        "import sys, time; from pathlib import Path; from bench.loggers.process import LoggerProcesses\n"
        "from bench.loggers import RunInfo\n"
        f"b = LoggerProcesses(('tensorboard',), *map(Path, sys.argv[1:]), {SAID})\n"
        "print(b._processes['tensorboard'].pid, flush=True); time.sleep(60)"
    )
    words = [sys.executable, "-c", code, str(making.folder), str(tmp_path)]
    run = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    until(lambda: (making.folder / "tensorboard").is_dir())
    until(lambda: [step for step, _ in scalars_in(making.folder).get("train/loss", ())] == [1])
    making.grow()
    run.kill()
    run.communicate()
    until(lambda: not psutil.pid_exists(pid))
    assert [step for step, _ in scalars_in(making.folder)["train/loss"]] == [1, 2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("turns", [False, True])
def test_mlflow_goes_on_with_the_run_that_it_began(
    turns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    from bench.loggers import mlflow_store

    making = Making(tmp_path / "runs")
    following = RunFollower(mlflow_store, making.folder, tmp_path / "runs", SAID)
    making.grow()
    following.look()
    client = MlflowClient(tracking_uri=(tmp_path / "runs" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("mlp")
    assert experiment is not None
    (began,) = client.search_runs([experiment.experiment_id])
    assert (began.info.status, len(client.get_metric_history(began.info.run_id, "train/loss"))) == ("RUNNING", 1)
    if turns and isinstance(following.live, mlflow_store.Stored):
        following.live.values["train/loss", 1] = 7.0  # as if the result said otherwise than what was shown
    folder = making.finish()
    following.end(folder)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id == began.info.run_id) is not turns
    assert run.info.status == "FINISHED"
    written: dict[str, list[tuple[int, float]]] = {}
    for one in recorded(folder).scalars:
        written.setdefault(one.name, []).append((one.step, one.value))
    for name, values in written.items():
        history = client.get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in history] == values


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_what_was_finished_until_it_is_finished_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient

    from bench.loggers import mlflow_store

    client = MlflowClient(tracking_uri=(tmp_path / "runs" / "mlruns").as_uri())

    def listed() -> dict[str, str]:
        experiment = client.get_experiment_by_name("mlp")
        assert experiment is not None
        return {run.info.run_id: run.info.status for run in client.search_runs([experiment.experiment_id])}

    folder = Making(tmp_path / "runs").finish()
    mlflow_store.write(recorded(folder), tmp_path / "runs")
    (finished,) = listed()
    making = Making(tmp_path / "again")
    making.grow()

    def again() -> RunFollower:
        following = RunFollower(mlflow_store, making.folder, tmp_path / "runs", SAID)
        following.look()
        return following

    killed = again()
    assert sorted(listed().values()) == ["FINISHED", "RUNNING"]
    killed.end(None)
    assert sorted(listed().values()) == ["FINISHED", "KILLED"]
    whole = recorded(folder)
    failed = replace(whole, metrics=whole.metrics.model_copy(update={"status": "failed"}))
    mlflow_store.write(failed, tmp_path / "runs", again().live)
    assert sorted(listed().values()) == ["FAILED", "FINISHED"]
    assert listed()[finished] == "FINISHED"
    mlflow_store.write(whole, tmp_path / "runs", again().live)
    assert list(listed().values()) == ["FINISHED"]
    assert finished not in listed()


class GoneOn(Making):
    """A run that was gone on with after two epochs, `AFTER` seconds from its first launch."""

    AFTER = 5000.0

    def __init__(self, output: Path) -> None:
        super().__init__(output)
        at = {i: record.at for i, record in enumerate(self.records) if isinstance(record, Evaluated)}
        cut = max(i for i in at if _of(self.records[i], 1)) + 1
        self.launched = LAUNCHED + self.AFTER
        later = self.launched + 1.0 - at[cut - 1]
        rest = [replace(each, at=each.at + later) if hasattr(each, "at") else each for each in self.records[cut:]]
        ready = [Ready(self.launched + 1.0, rank, 960 * 2, 500, "same", "cpu", "gloo") for rank in (0, 1)]
        resumed = Resumed(self.launched, 1, 2, 1920, "runs/before")
        self.records = [*self.records[:cut], resumed, *ready, *rest]
        self.written = list(lines(self.records))

    def finish(self) -> Path:
        (self.folder / EVENTS).write_bytes(b"".join(line + b"\n" for line in self.written))
        metrics = make_metrics(SPEC, self.records)
        time_s = metrics.time_s.model_copy(update={"total": metrics.time_s.total - self.AFTER})
        (self.folder / METRICS).write_text(metrics.model_copy(update={"time_s": time_s}).model_dump_json())
        return self.writer.commit("ok")


@pytest.mark.filterwarnings("ignore")
def test_nothing_of_a_run_that_goes_on_lies_in_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    from bench.loggers import mlflow_store, tensorboard_events

    making = GoneOn(tmp_path / "runs")
    last = max(record.at for record in making.records if hasattr(record, "at"))
    begun = time.time() - (last - making.launched)  # as if it had lasted that long by now
    os.utime(making.folder / CONFIG, (begun, begun))
    followers = [RunFollower(each, making.folder, tmp_path, SAID) for each in (mlflow_store, tensorboard_events)]
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())

    def stored() -> tuple[Run, list[float]]:
        experiment = client.get_experiment_by_name("mlp")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        points = [each for name in run.data.metrics for each in client.get_metric_history(run.info.run_id, name)]
        return run, [point.timestamp / 1000 for point in points]

    making.epoch = 2
    making.grow()
    for following in followers:
        following.look()
    run, times = stored()
    (path,) = (making.folder / "tensorboard").iterdir()
    times += [event.wall_time for event in EventFileLoader(str(path)).Load()]
    assert max(times) < time.time() + 1
    assert max(times) - min(times) > making.AFTER - 1
    folder = making.finish()
    for following in followers:
        following.end(folder)
    run, times = stored()
    assert run.info.end_time / 1000 >= max(times) > time.time() - 60
    (path,) = (folder / "tensorboard").iterdir()
    ended = max(event.wall_time for event in EventFileLoader(str(path)).Load())
    assert ended < time.time() + 1
    assert recorded(folder).began + recorded(folder).seconds == pytest.approx(ended, abs=1)
