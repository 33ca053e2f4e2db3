"""MLflow: scalars keep series of their own under any name; a run that cannot be written is not left running."""

from __future__ import annotations

import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name

from bench.loggers import mlflow_store
from bench.loggers.mlflow_store import MetricNames, Stored
from bench.loggers.recorded import Scalar, recorded
from tests.bench.streams import make_spec, write_run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def begun() -> Any:
    return types.SimpleNamespace(model="mlp", mode="solo", run_id="r", began=1.0, title="t", config_hash="h", params={})


def stored_runs(output: Path) -> list[Run]:
    client = MlflowClient(tracking_uri=(output / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("mlp")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_mlflow_takes_any_name_and_an_experiment_that_was_deleted(tmp_path: Path, begun: Any) -> None:
    first = Stored(begun, tmp_path)
    first._client.delete_experiment(first._experiment)
    stored = Stored(begun, tmp_path)
    stored.add([Scalar("train/acc@1", 0.5, 1, 0.0)])
    assert stored._client.get_run(stored._id).data.metrics == {"train/acc_1": 0.5}


def test_every_name_has_a_series_of_its_own(tmp_path: Path, begun: Any) -> None:
    stored = Stored(begun, tmp_path)
    names = ("损失", "精度", "loss", "loss/box", "acc/")
    for step in (0, 1):
        stored.add([Scalar(name, value, step, 0.0) for value, name in enumerate(names, 1)])
    metrics = stored._client.get_run(stored._id).data.metrics
    assert metrics == {"损失": 1, "精度": 2, "loss": 3, "loss.box": 4, "acc": 5}
    assert all(len(stored._client.get_metric_history(stored._id, name)) == 2 for name in metrics)


@pytest.mark.parametrize(
    ("names", "given"),
    [
        (("acc@1", "acc#1", "acc_1"), ["acc_1", "acc_1_2", "acc_1_3"]),
        (("a//b", "./x", "../x", "/", "..", "...", "a/./b"), ["a/b", "x", "x_2", "_", "__2", "_...", "a/b_2"]),
        (("a/b/c", "a", "a/b", "a_2"), ["a/b/c", "a_2", "a/b_2", "a_2_2"]),
        (("a", "a/b/c", "a/b.c", "a.b.c"), ["a", "a.b.c", "a.b.c_2", "a.b.c_3"]),
        (("损" * 100, "损" * 100 + "失"), ["损" * 80, "损" * 80 + "_2"]),
    ],
)
def test_names_are_such_as_mlflow_and_a_store_of_files_take(names: tuple[str, ...], given: list[str]) -> None:
    known = MetricNames()
    for _ in range(2):
        assert [known[name] for name in names] == given
    assert all(validate_param_and_metric_name(name) and not path_not_unique(name) for name in given)


def test_a_run_that_cannot_be_written_is_not_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(write_run(tmp_path, make_spec()))

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Stored, "describe", full)
        with pytest.raises(OSError, match="No space"):
            mlflow_store.write(run, tmp_path)
    assert [each.info.status for each in stored_runs(tmp_path)] == ["FAILED"]
    scalar = replace(
        run, scalars=[*run.scalars, Scalar("scalars/box", 1.0, 1, 1.0), Scalar("scalars/box/x", 2.0, 1, 1.0)]
    )
    mlflow_store.write(scalar, tmp_path)
    (whole,) = stored_runs(tmp_path)
    assert whole.info.status == "FINISHED"
    assert (whole.data.metrics["scalars/box"], whole.data.metrics["scalars/box.x"]) == (1.0, 2.0)
