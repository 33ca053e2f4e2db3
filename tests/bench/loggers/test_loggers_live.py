"""Loggers while a run lasts: they add what is settled, once, and end as those that are told at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench import loggers
from bench.loggers import RunInfo
from bench.loggers.follow import RunFollower
from bench.loggers.recorded import Begun, Recorded, Scalar, recorded
from bench.results.runfolder import CONFIG, EVENTS, METRICS
from bench.results.writer import RunWriter
from ddp.core.messages.events import Evaluated
from ddp.core.messages.run_bounds import Launched
from ddp.process.codec import Record
from tests.bench.dashboard.dashboards import until
from tests.bench.loggers.test_loggers import scalars_in
from tests.bench.streams import LAUNCHED, lines, make_metrics, make_records, make_spec

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
