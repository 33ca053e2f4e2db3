"""Run folders as pandas frames: the result of `bench.load`. Reads through `bench.results.runfolder`; computes nothing
itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from bench.results.analysis.faults import missing
from bench.results.runfolder import EVENTS, Run, find_runs
from ddp import regular_files
from ddp.suggest import unknown

Row = dict[str, Any]
WHO = ("run_id", "model", "mode", "world_size", "seed", "config_hash")
"""Columns that identify the run of a row, besides `path`."""
OF_EVENTS = (*WHO, "path", "line", "since_s")
"""Columns of the rows of records that are not the records' own fields: a field of that name is `record.<name>`."""


def load(path: str | Path = "runs", what: str = "runs") -> pd.DataFrame:
    """Read runs into a frame. `bench.load` has the description. Raise ValueError for an unknown frame."""
    if what not in FRAMES:
        raise ValueError(unknown("what", what, FRAMES))
    runs, problems = find_runs(Path(path))
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=3)
    return pd.DataFrame([row for run in runs for row in FRAMES[what](run)])


def flat(body: dict[str, Any], prefix: str = "") -> Row:
    """Return nested objects as dotted names; lists are left out."""
    row: Row = {}
    for key, value in body.items():
        if isinstance(value, dict):
            row |= flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            row[f"{prefix}{key}"] = value
    return row


def _who(run: Run) -> Row:
    return {"path": str(run.path), **{name: getattr(run.metrics, name) for name in WHO}}


def _run(run: Run) -> Iterator[Row]:
    body = run.metrics.model_dump()
    # The configuration: lists as text, so that they can be compared and grouped by.
    settings = {key: value for key, value in run.config.items() if key not in ("run_id", "config_hash")}
    config = flat(_lists_as_text(settings), "config.")
    yield _who(run) | flat(body) | {"faults": len(run.metrics.faults), "warnings": len(run.metrics.warnings)} | config


def _lists_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists_as_text(inner) for key, inner in value.items()}
    return str(value) if isinstance(value, list) else value


def _epochs(run: Run) -> Iterator[Row]:
    for epoch in run.metrics.epochs:
        yield _who(run) | flat(epoch.model_dump())


def _ranks(run: Run) -> Iterator[Row]:
    m = run.metrics
    by_rank: dict[str, Sequence[Any]] = {
        "device": m.devices if len(m.devices) == m.world_size else [],
        "emulated_speed": m.emulated_speeds or [1.0] * m.world_size,
        "samples_per_s": m.throughput.per_rank,
        "wall_s": m.time_s.rank_wall,
        "peak_rss_bytes": m.memory.peak_rss_bytes,
        "peak_device_bytes": m.memory.peak_device_bytes,
    }
    lost = missing(m.faults)
    for rank in range(m.world_size):
        row: Row = {name: values[rank] if rank < len(values) else None for name, values in by_rank.items()}
        shares = m.breakdown[rank].model_dump() if rank < len(m.breakdown) else {}
        yield _who(run) | {"rank": rank, "lost": rank in lost} | row | shares


def _events(run: Run) -> Iterator[Row]:
    first: float | None = None
    try:
        for number, line in enumerate(regular_files.lines(run.path / EVENTS), 1):
            body = msgspec.json.decode(line, type=dict[str, Any])
            body.pop("d", None)
            at = float(body["at"])
            first = at if first is None else first
            values = {f"record.{name}" if name in OF_EVENTS else name: value for name, value in body.items()}
            yield _who(run) | {"line": number, "type": body["type"], "since_s": at - first} | values
    except (OSError, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        warnings.warn(f"{run.path / EVENTS}: the rest is left out: {error}", stacklevel=5)


FRAMES: dict[str, Callable[[Run], Iterator[Row]]] = {
    "runs": _run,
    "epochs": _epochs,
    "ranks": _ranks,
    "events": _events,
}
"""Name of a frame -> function that yields the rows of one run."""
