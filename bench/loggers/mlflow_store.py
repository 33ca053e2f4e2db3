"""`mlflow`: a store of files, `mlruns/` beside the runs; `mlflow ui --backend-store-uri runs/mlruns` shows it.

`MLFLOW_TRACKING_URI`, where it is set, names another one. Nothing is reported to MLflow's makers.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import TypeVar

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # kept up, no longer added to; a database needs more packages

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from bench.base.paths import MLRUNS
from bench.loggers.base import Live
from bench.loggers.recorded import Begun, Recorded, Scalar

KEY = "bench.run_id"
STATUS = {"ok": "FINISHED", "killed": "KILLED"}
LONGEST = 5000
"""Characters of a tag."""
_REFUSED = re.compile(r"[^\w./ :-]")
"""Characters that no metric's name may have."""
LONGEST_NAME = 240
"""Bytes of a metric's name, which is that of a file."""
MOST = 500
"""Most values passed to MLflow in one call; its limits are 1000, and 100 for parameters."""


T = TypeVar("T")


class MetricNames:
    """Gives each scalar a name that MLflow takes and no other scalar has. A store of files keeps a metric as a file, so no
    name may be the folder of another one."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()
        self._folders: set[str] = set()

    def __getitem__(self, scalar: str) -> str:
        if scalar not in self._given:
            name = self._given[scalar] = self._free(scalar)
            self._taken.add(name)
            self._folders |= _folders(name)
        return self._given[scalar]

    def _free(self, scalar: str) -> str:
        name = cleaned(scalar)
        while _folders(name) & self._taken:
            name = ".".join(name.rsplit("/", 1))
        others = (f"{name}_{n}" for n in count(2))
        return next(each for each in chain([name], others) if each not in self._taken and each not in self._folders)


def cleaned(name: str) -> str:
    """Return `name` as MLflow takes it: a relative path in its shortest form, without refused characters."""
    short = _REFUSED.sub("_", name).encode()[:LONGEST_NAME].decode(errors="ignore")
    path = posixpath.normpath(f"/{short}").strip("/")
    return f"_{path}" if not path or path.startswith("..") else path


def _folders(name: str) -> set[str]:
    return {str(folder) for folder in PurePosixPath(name).parents} - {"."}


class Stored:
    """A run in the experiment with its model's name. Earlier attempts stay until this one has a result."""

    def __init__(self, run: Begun, output: Path) -> None:
        self.folder = output.absolute() / MLRUNS
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or self.folder.as_uri())
        self._began = round(run.began * 1000)
        self.values: dict[tuple[str, int], float] = {}
        self._names = MetricNames()
        known = self._client.get_experiment_by_name(run.model)
        if known is not None and known.lifecycle_stage == "deleted":  # on MLflow's page
            self._client.restore_experiment(known.experiment_id)
        self._experiment = known.experiment_id if known is not None else self._client.create_experiment(run.model)
        self._name = f"{run.mode}/{run.run_id}"
        self._id = self._client.create_run(self._experiment, start_time=self._began, run_name=run.title).info.run_id
        self._client.log_batch(self._id, tags=[RunTag(KEY, self._name), RunTag("bench.config_hash", run.config_hash)])
        for params in _parts(list(run.params.items()), 100):
            self._client.log_batch(self._id, params=[Param(key, value) for key, value in params])

    def add(self, scalars: Sequence[Scalar]) -> None:
        """Append."""
        for part in _parts(scalars, MOST):
            metrics = [
                Metric(self._names[s.name], s.value, self._began + round(s.seconds * 1000), s.step) for s in part
            ]
            self._client.log_batch(self._id, metrics=metrics)
            self.values |= {(s.name, s.step): s.value for s in part}

    def describe(self, run: Recorded) -> None:
        """Add tags, among them those that MLflow knows by name, and the files of the run."""
        tags = {f"bench.{name}": value for name, value in run.tags.items()}
        if commit := run.tags.get("git.commit"):
            tags["mlflow.source.git.commit"] = commit
        self._client.log_batch(self._id, tags=[RunTag(key, value[:LONGEST]) for key, value in tags.items()])
        for file in run.files:
            kind = "pictures" if file in run.images else file.stem if file.stem in ("timeline", "report") else "run"
            self._client.log_artifact(self._id, str(file), kind)

    def end(self) -> None:
        """Mark the run as killed."""
        self.close("killed")

    def close(self, status: str, seconds: float | None = None) -> None:
        """Close the run with `status` as in `metrics.json`, `seconds` after its beginning; None: now."""
        self._client.set_tag(self._id, "bench.status", status)
        at = None if seconds is None else self._began + round(seconds * 1000)
        self._client.set_terminated(self._id, STATUS.get(status, "FAILED"), end_time=at)

    def replace(self, status: str) -> None:
        """Delete the runs of earlier attempts; a finished one only if this one is finished, as with run folders."""
        for old in self._client.search_runs([self._experiment], filter_string=f"tags.`{KEY}` = '{self._name}'"):
            if old.info.run_id != self._id and (status == "ok" or old.info.status != STATUS["ok"]):
                self._client.delete_run(old.info.run_id)


def begin(run: Begun, output: Path) -> Live:
    """List the run as running."""
    return Stored(run, output)


def write(run: Recorded, output: Path, live: Live | None = None) -> Path:
    """Write a run: complete the `live` run, or write it anew if its values contradict the result."""
    values = {(s.name, s.step): s.value for s in run.scalars}
    same = isinstance(live, Stored) and live.values.items() <= values.items()
    stored = live if isinstance(live, Stored) and same else Stored(run, output)
    try:
        stored.add([s for s in run.scalars if (s.name, s.step) not in stored.values])
        stored.describe(run)
        stored.close(run.metrics.status, run.seconds)
    except Exception:
        for begun in (stored, live):  # it would be listed as running forever
            if isinstance(begun, Stored):
                with suppress(Exception):
                    begun.close("failed")
        raise
    stored.replace(run.metrics.status)
    return stored.folder


def _parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
