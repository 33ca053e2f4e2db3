"""The dashboard over runs of a script that have no folders of their own. `ddp.monitor.harness` finds this module by name.

Owns the files of such a run folder besides its records, and a server that removes the folders after the script has
ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.base.writing import write_text
from bench.config.spec import RunSpec
from bench.dashboard import page
from bench.dashboard.board import whole
from bench.dashboard.process import DashboardProcess
from bench.results.analyze import analyze
from bench.results.live.run import RunFigures
from bench.results.runfolder import CONFIG, GRAPH, METRICS
from bench.results.training_settings import micro_batches
from ddp.process.codec import Record, decode

Json = dict[str, Any]


def describe(folder: Path, config: Json, graph: Json | None) -> None:
    """Write configuration and graph of a run. Raises OSError."""
    write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
    if graph is not None:
        write_text(folder / GRAPH, json.dumps(graph) + "\n")


def conclude(
    folder: Path, config: Json, records: Sequence[bytes], launched: float, end: tuple[float, str, str | None]
) -> None:
    """Write the result of a run that is over. `end`: time, status and cause of its end. Writes none if the records are
    not those of a whole run. Raises OSError."""
    ended, status, error = end
    try:
        run = [decode(line) for line in records]
        metrics = analyze(
            _spec(config, _counted(run)),
            run,
            status=status,
            error=error,
            launched=launched,
            ended=ended,
            env={},
            git={},
        )
    except (AssertionError, ValueError, IndexError, KeyError):
        return
    write_text(folder / METRICS, metrics.model_dump_json() + "\n")


def _counted(run: Sequence[Record]) -> bool:
    """Return whether the samples of a run are known."""
    figures = RunFigures()
    for record in run:
        figures.add(record)
    return figures.counted


def _spec(config: Json, timing: bool) -> RunSpec:
    train, policy = config["train"], config["policy"]
    same = {
        name: config[name] for name in ("model", "mode", "engine", "backend", "world_size", "run_id", "config_hash")
    }
    return RunSpec(
        **same,
        data="",
        recipe="script",
        policy=policy and policy["name"],
        seed=train.get("seed", 0),
        epochs=train["epochs"],
        batch_size=train.get("batch_size", 1) * micro_batches(config),
        lr=0.0,
        lr_scale=1.0,
        speeds=tuple(config["cluster"]["speeds"]),
        metric=train.get("metric", "eval"),
        higher_is_better=True,
        target=None,
        output="",
        config=config,
        timing=timing,
    )


def serve(root: Path, port: int) -> DashboardProcess:
    """Serve the runs below `root`; the server removes `root` when this process is gone. Raises OSError."""
    return DashboardProcess(root, port, private=True)


def export(root: Path, out: Path) -> None:
    """Write the page over the runs below `root` to a file. Raises OSError."""
    write_text(out, page.exported(whole(root), root))
