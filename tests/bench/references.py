"""Baselines and runs with chosen results, for the tests of validation."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from bench.config.spec import RunSpec
from bench.results.schema import Metrics
from bench.validate import Terms, Verdict, judge
from bench.validate.revisions.revision import accept, write_proposals
from tests.bench.streams import make_metrics, make_spec, write_run

TODAY = date(2026, 11, 21)
FIVE = (0.970, 0.972, 0.974, 0.976, 0.978)
TWENTY = FIVE * 4
CELL = {"config_hash": "the-cell"}


def with_eval(spec: RunSpec, value: float | None) -> Metrics:
    metrics = make_metrics(spec)
    return metrics.model_copy(update={"final": metrics.final.model_copy(update={"eval": value})})


def put(root: Path, spec: RunSpec, value: float | None) -> Path:
    return write_run(root, spec, with_eval(spec, value))


def cell(root: Path, mode: str, values: tuple[float | None, ...], **changes: object) -> Path:
    """Runs of one cell, the first with seed 0."""
    for seed, value in enumerate(values):
        put(root, make_spec(mode, seed=seed, **changes), value)
    return root


def baselines(folder: Path, values: tuple[float, ...] = FIVE, mode: str = "solo", **changes: object) -> Path:
    """A folder of accepted baselines with the one cell."""
    runs = cell(folder / f"runs-{mode}", mode, values, **changes)
    write_proposals(runs, folder / "proposals", TODAY)
    accept(folder / "proposals", folder / "baselines")
    return folder / "baselines"


def verdicts(runs: Path, baselines: Path, **terms: object) -> dict[tuple[str, str], Verdict]:
    """By cell and check."""
    found = judge([runs], baselines, Terms(today=TODAY, **terms)).verdicts  # type: ignore[arg-type]
    return {(verdict.cell, verdict.check): verdict for verdict in found}


def one(runs: Path, baselines: Path, check: str = "quality", **terms: object) -> Verdict:
    """The verdict of a check, where there is one cell."""
    (found,) = [v for (_, name), v in verdicts(runs, baselines, **terms).items() if name == check]
    return found


def changed_trees(folder: Path, values: tuple[float, ...]) -> tuple[Path, Path]:
    """Two trees, before and now: solo as it was, `nccl_sync` worse, `nccl_cadence` failed, one cell gone and one new."""
    old, new = folder / "old", folder / "new"
    for root in (old, new):
        cell(root, "solo", values)
    cell(old, "nccl_sync", values)
    cell(new, "nccl_sync", tuple(value - 0.05 for value in values))
    cell(old, "cpu_async", values)
    cell(new, "cpu_cadence", values)
    spec = make_spec("nccl_cadence")
    put(old, spec, 0.97)
    write_run(new, spec, make_metrics(spec, status="failed", error="boom"))
    return old, new
