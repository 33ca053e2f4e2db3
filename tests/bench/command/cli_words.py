"""Words of small runs, and where those lie."""

from __future__ import annotations

from pathlib import Path

from bench.results.runfolder import find_runs

SOLO = ("model=mlp", "mode=solo", "train.epochs=2")


def folders(output: str = "runs") -> list[str]:
    return [str(run.path.relative_to(output)) for run in find_runs(Path(output))[0]]
