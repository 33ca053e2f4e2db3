"""The benchmark harness: configuration, launching, run folders, analysis, report, validation, dashboard. `load` reads
recorded runs into a data frame; `judge` returns the verdicts on one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from bench.validate import Judgement
    from ddp.trainer import RunHandle

__all__ = ["judge", "load"]


def judge(run: RunHandle | str | Path, baseline: str | Path | None = None) -> Judgement:
    """Return the verdicts on a run, given as a `RunHandle` or a run folder, after the run has ended. `print` shows
    them.

    Judges the run together with the runs of the same configuration and other seeds in the same
    tree. `baseline`: a folder of baselines or one baseline file; None: the committed
    baselines and your own. `Judgement.code` is the exit code of `bench validate`.

    Raises ValueError for a run without `output`, and for a path that is not a folder.
    """
    from bench.base.paths import BASELINES
    from bench.results.cells import apart, cells
    from bench.results.runfolder import find_runs
    from bench.validate import judge_cells

    if isinstance(run, (str, Path)):
        folder = Path(run)
    else:
        run.wait()
        if run.folder is None:
            raise ValueError("this run was not recorded: give Trainer(..., output='runs', name='touch')")
        folder = run.folder
    _, problems = find_runs(folder)
    runs, _ = find_runs(folder.absolute().parent)
    mine, _ = apart(cells(runs), [folder])
    unread = [(folder.name, problem) for problem in problems]
    return judge_cells(mine, unread, BASELINES if baseline is None else Path(baseline))


def load(path: str | Path = "runs", what: str = "runs") -> pd.DataFrame:
    """Return the runs in `path` (a run folder or a tree of them) as a tidy frame, in the order of their paths.

    `what`:

    - `runs`: a row for each run, with every value of `metrics.json` that is not a list, nested names joined by dots:
      `final.eval` (unit of the metric, `final.eval_metric`; an accuracy is a fraction), `final.train_loss`,
      `time_s.*` (seconds), `throughput.samples_per_s` (samples per second), `throughput.efficiency` (fraction),
      `sync.ms_p50` (milliseconds), `sync.bytes`; `faults` and `warnings` are counts. `bench/metrics.schema.json` has all
      units. The configuration is in `config.*`, such as `config.policy.anchor`, with lists as text.
    - `epochs`: a row for each epoch, from 0: `samples` trained by then, `train_loss`, `eval`, `eval_loss`, `lr`, `seconds`
      of training by then, and recorded scalars as `scalars.*`.
    - `ranks`: a row for each rank, from 0: `device`, `samples_per_s`, `wall_s` (seconds), the fractions of it (`compute`,
      `data`, `comm`, `wait`, `eval`, `checkpoint`, `absent`, `other`: between steps), `peak_rss_bytes`,
      `peak_device_bytes`, `emulated_speed` (1: none), `lost`.
    - `events`: a row for each record of `events.jsonl`: `line`, `type`, `since_s` (seconds since the first one, the launch),
      and the record's own fields, in the units of `ddp.core.messages.events`; its fields `model` and `since_s` are the
      columns `record.model` and `record.since_s`.

    Every row names its run: `path`, `run_id`, `model`, `mode`, `world_size`, `seed`, `config_hash`. Unknown values are
    missing.

    Skips unreadable folders with a warning. Raises ValueError if `path` is not a folder.
    """
    from bench.results.frames import load as frames  # pandas takes its time, and few commands need it

    return frames(path, what)
