"""The harness: configuration, launching, run folders, analysis, report, validation, dashboard. `load` reads its results,
`judge` gives the verdict on one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from bench.validate import Judgement
    from ddp.trainer import RunHandle

__all__ = ["judge", "load"]


def judge(run: RunHandle | str | Path, baseline: str | Path | None = None) -> Judgement:
    """Return the verdicts on a run, a `RunHandle` or a run folder; `print` shows them. Waits for the run to end.

    Seeds of the same cell that finished earlier, in the same tree, count with it. `baseline`: folder of baselines, or one of
    its files; None: the committed ones. `Judgement.code` is the exit code that `bench validate` would have.

    Raises ValueError for a run that was not recorded, and for a folder that is none.
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
