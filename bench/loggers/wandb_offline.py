"""`wandb`: an offline run in `wandb/` in the run's folder; `wandb sync` sends it to whom you choose.

`WANDB_MODE`, where it is set, decides otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

from bench.base.grouping import grouped
from bench.loggers.base import Live
from bench.loggers.recorded import Begun, Recorded

FOLDER = "wandb"


def begin(run: Begun, output: Path) -> Live | None:
    """Return None: wandb writes into the run's folder, which has another name when the run is over."""
    return None


def write(run: Recorded, output: Path, live: Live | None = None) -> Path:
    """Write a run, into the project `bench`, in the group of its cell. Its rows are of one time each: wandb's own steps must
    ascend over all series."""
    m = run.metrics
    with wandb.init(
        project="bench",
        name=run.title,
        group=f"{m.model} {m.mode} {m.config_hash[:8]}",
        config={**run.settings, **{f"run.{name}": value for name, value in run.tags.items()}},
        tags=[m.mode, m.data, m.status, *(["faults"] if m.faults else [])],
        dir=str(run.folder),
        mode=os.environ.get("WANDB_MODE", "offline"),
    ) as made:
        made.define_metric("seconds")
        made.define_metric("*", step_metric="seconds")
        rows = grouped((scalar.seconds, scalar) for scalar in run.scalars)
        for seconds in sorted(rows):
            made.log({"seconds": seconds, **{scalar.name: scalar.value for scalar in rows[seconds]}})
        made.summary.update({scalar.name: scalar.value for scalar in run.scalars if scalar.name.startswith("final/")})
        made.log({f"pictures/{file.stem}": wandb.Image(str(file)) for file in run.images})
        kept = wandb.Artifact(f"{m.model}-{m.mode}-{m.run_id}", type="run")
        for file in run.files:
            kept.add_file(str(file))
        made.log_artifact(kept)
        made.finish(exit_code=0 if m.status == "ok" else 1)  # wandb shows a run as failed if this is not 0
    return run.folder / FOLDER
