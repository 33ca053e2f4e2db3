"""`mlflow`: a store of files, `mlruns/` beside the runs; `mlflow ui --backend-store-uri runs/mlruns` shows it.

`MLFLOW_TRACKING_URI`, where it is set, names another one. Nothing is reported to MLflow's makers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # kept up, no longer added to; a database needs more packages

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from bench.loggers.recorded import Recorded

FOLDER = "mlruns"
KEY = "bench.run_id"
STATUS = {"ok": "FINISHED", "killed": "KILLED"}
MOST = 500
"""Values that are handed over at once; MLflow takes 1000, and 100 parameters."""


T = TypeVar("T")


def write(run: Recorded, output: Path) -> Path:
    """Write a run, into the experiment that is called as its model."""
    folder = output.absolute() / FOLDER
    client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or folder.as_uri())
    m = run.metrics
    known = client.get_experiment_by_name(m.model)
    experiment = known.experiment_id if known is not None else client.create_experiment(m.model)
    for old in client.search_runs([experiment], filter_string=f"tags.`{KEY}` = '{m.mode}/{m.run_id}'"):
        client.delete_run(old.info.run_id)
    began = round(run.began * 1000)
    made = client.create_run(experiment, start_time=began, run_name=run.title).info.run_id
    tags = {KEY: f"{m.mode}/{m.run_id}", "bench.status": m.status, "bench.config_hash": m.config_hash}
    client.log_batch(made, tags=[RunTag(key, value) for key, value in tags.items()])
    for params in _parts(list(run.params.items()), 100):
        client.log_batch(made, params=[Param(key, value) for key, value in params])
    for part in _parts(run.scalars, MOST):
        client.log_batch(made, metrics=[Metric(s.name, s.value, began + round(s.seconds * 1000), s.step) for s in part])
    client.set_terminated(made, STATUS.get(m.status, "FAILED"), end_time=began + round(m.time_s.total * 1000))
    return folder


def _parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
