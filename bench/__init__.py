"""The harness: configuration, launching, run folders, analysis, report, validation, dashboard. `load` reads its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load"]


def load(path: str | Path = "runs", what: str = "runs") -> pd.DataFrame:
    """Return the runs in `path` (a run folder or a tree of them) as a tidy frame, in the order of their paths.

    `what`:

    - `runs`: a row for each run. Every value of `metrics.json` that is no list, nested ones dotted: `final.eval` (unit of
      the metric, `final.eval_metric`; an accuracy is a fraction), `final.train_loss`, `time_s.*` (seconds),
      `throughput.samples_per_s` (samples per second), `throughput.efficiency` (fraction), `sync.ms_p50` (milliseconds),
      `sync.bytes`; `faults` and `warnings` are numbers of them. `bench/metrics.schema.json` has the units of all. The
      configuration as `config.*`, such as `config.policy.anchor`; its lists as text.
    - `epochs`: a row for each epoch, from 0: `samples` trained by then, `train_loss`, `eval`, `eval_loss`, `lr`, `seconds`
      of training by then, and recorded scalars as `scalars.*`.
    - `ranks`: a row for each rank, from 0: `samples_per_s`, `wall_s` (seconds), the fractions of it (`compute`, `data`,
      `comm`, `wait`, `eval`, `checkpoint`, `other`), `peak_rss_bytes`, `peak_device_bytes`, `emulated_speed` (1: none),
      `lost`.
    - `events`: a row for each record of `events.jsonl`: `line`, `type`, `since_s` (seconds since the first one, the launch),
      and the record's own fields, in the units of `ddp.core.events`; `record.model` is a record's field `model`.

    Every row names its run: `path`, `run_id`, `model`, `mode`, `world_size`, `seed`, `config_hash`. What is not known is
    missing.

    A folder that cannot be read is left out, with a warning that names it. Raises ValueError if `path` is no folder.
    """
    from bench.results.frames import load as frames  # pandas takes its time, and few commands need it

    return frames(path, what)
