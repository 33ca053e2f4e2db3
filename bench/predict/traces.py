"""Reads foreign traces: Parquet of a training job's operations, Chrome and Kineto JSON of one process or many."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from bench.predict.pipeline_trace import BACKWARD, COLUMNS, FORWARD, Op, PipelineTrace, depend
from bench.predict.steptimes import resampled
from bench.results.analysis.stream import Floats
from ddp import regular_files

MOST_BYTES = 1 << 31
"""Most bytes of a trace."""
MARK = "ProfilerStep#"
"""Prefix of a step's name in the output of torch.profiler."""
LEAST = 3
"""Least steps of a rank to use it."""


def read_pipeline(path: Path) -> PipelineTrace:
    """Return the trace in a Parquet file. Raises ValueError that says what is wrong with it."""
    return pipeline_of(_table(path), path)


def pipeline_of(table: Any, path: Path) -> PipelineTrace:
    """Return the trace in a table with `COLUMNS`; `path`: its name in errors. Raises ValueError."""
    _check(table, path)
    table = table.assign(optype=table.optype.astype(str))
    if table.duplicated([name for name in COLUMNS if name not in ("start_ts", "duration", "rank")]).any():
        raise ValueError(f"{path}: it has an operation twice")
    if set(table.dp_rank) != set(range(table.dp_rank.nunique())):
        raise ValueError(f"{path}: dp_rank must be numbered from 0 up")
    if set(table.stage) != set(range(table.stage.nunique())):
        raise ValueError(f"{path}: stage must be numbered from 0 up")
    if "mc" in table and table.mc.max() > 0:
        raise ValueError(f"{path}: virtual pipeline stages are not known here")
    table = table.sort_values(["step", "dp_rank"])
    steps, width = table.step.nunique(), table.dp_rank.nunique()
    began = table.groupby("step").start_ts.transform("min")
    table = table.assign(start_ts=(table.start_ts - began).astype(float), duration=table.duration.astype(float))
    if not np.isfinite(table[["start_ts", "duration"]].to_numpy()).all() or not table.duration.max() > 0:
        raise ValueError(f"{path}: start_ts and duration must be finite, and some duration above 0")
    start, took = dict[Op, Floats](), dict[Op, Floats]()
    for (kind, number, stage), rows in table.groupby(["optype", "seq_id", "stage"]):
        op = (str(kind), int(number), int(stage))
        if len(rows) != steps * width:
            raise ValueError(f"{path}: {op[0]} {op[1]} of stage {op[2]} is not in every step of every rank")
        start[op], took[op] = rows.start_ts.to_numpy(), rows.duration.to_numpy()
    workers = {(int(r), int(s)): int(w) for r, s, w in table[["dp_rank", "stage", "rank"]].drop_duplicates().to_numpy()}
    trace = PipelineTrace(start, took, workers, int(table.stage.max()) + 1, width, steps)
    try:
        depend(trace, {op: (float(start[op][0]), float(start[op][0] + took[op][0])) for op in took})
        if trace.play(trace.ideal) <= 0:
            raise ValueError("its operations would take no time without stragglers")
    except (ValueError, StopIteration, KeyError) as error:
        raise ValueError(f"{path}: {str(error) or 'it has no passes'}") from None
    return trace


def _table(path: Path) -> Any:
    import pandas as pd

    try:
        table = pd.read_parquet(BytesIO(regular_files.content(path, MOST_BYTES)))
    except ImportError:
        raise ValueError(f"{path}: Parquet is read by pyarrow: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
    return table


def _check(table: Any, path: Path) -> None:
    """Raise ValueError unless a table has `COLUMNS`: times, whole numbers, and the kind of an operation."""
    if missing := [name for name in COLUMNS if name not in table]:
        raise ValueError(f"{path}: it has no column {missing[0]}")
    for name in (*COLUMNS, "mc"):
        if name in table and name != "optype":
            if table[name].dtype.kind not in "iuf":
                raise ValueError(f"{path}: {name} must be numbers")
            if table[name].isna().any() or not np.isfinite(table[name].to_numpy(np.float64)).all():
                raise ValueError(f"{path}: {name} must be finite")
            if name not in ("start_ts", "duration") and (table[name] % 1 != 0).any():
                raise ValueError(f"{path}: {name} must be whole numbers")
    if table.duration.min() < 0:
        raise ValueError(f"{path}: a duration is below 0")


@dataclass(frozen=True)
class TracedSteps:
    """Step times by rank from a trace, relative to their mean. Further ranks repeat them."""

    name: str
    series: tuple[Floats, ...]

    def draw(self, length: int, dice: np.random.Generator, rank: int = 0) -> Floats:
        """Return step times relative to the mean of all, resampled in blocks."""
        mean = float(np.mean([each.mean() for each in self.series]))
        return resampled(self.series[rank % len(self.series)] / mean, length, dice)


def traced(path: Path) -> TracedSteps:
    """Return the step times in a trace: `.parquet`, or `.json` and `.json.gz` of Chrome or Kineto. Raises
    ValueError."""
    series = steps_of(_table(path), path) if path.suffix == ".parquet" else _of_chrome(path)
    series = [each for each in series if each.size >= LEAST]
    if not series:
        raise ValueError(f"{path}: no rank has {LEAST} steps in it; torch.profiler marks steps if it has a schedule")
    if not all(each.mean() > 0 and each.min() >= 0 for each in series):
        raise ValueError(f"{path}: its steps take no time")
    return TracedSteps(path.name, tuple(series))


def steps_of(table: Any, path: Path) -> list[Floats]:
    """Return, by data-parallel rank, the seconds of computing in each step of its slowest stage. Raises ValueError."""
    _check(table, path)
    passes = table[table.optype.astype(str).isin([FORWARD, BACKWARD])]
    each = passes.groupby(["dp_rank", "step", "stage"], observed=True).duration.sum()
    slowest = each.groupby(level=["dp_rank", "step"]).max()
    return [group.to_numpy(np.float64) for _, group in slowest.groupby(level="dp_rank")]


def _unpacked(content: bytes) -> bytes:
    """Return the content of a gzip file. Raise ValueError if it is too large."""
    with gzip.GzipFile(fileobj=BytesIO(content)) as file:
        whole = file.read(MOST_BYTES + 1)
    if len(whole) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    return whole


def _of_chrome(path: Path) -> list[Floats]:
    """Return, by process or lane, the seconds of each step: as marked by torch.profiler, else the sum of a
    `data` slice and the forward, backward and optimizer slices after it."""
    try:
        content = regular_files.content(path, MOST_BYTES)
        body = json.loads(_unpacked(content) if path.suffix == ".gz" else content)
    except (OSError, ValueError, EOFError, zlib.error, RecursionError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
    events = body.get("traceEvents", []) if isinstance(body, dict) else body
    if not isinstance(events, list):
        raise ValueError(f"{path}: traceEvents is no list")
    known = [event for event in events if isinstance(event, dict)]
    whole = [event for event in known if event.get("ph") == "X" and "dur" in event] + _pairs(known)
    if strange := next((event for event in whole if not (_seconds(event, "ts") and _seconds(event, "dur"))), None):
        raise ValueError(f"{path}: ts and dur must be numbers of microseconds, not as in {str(strange)[:80]}")
    on_cpu = [event for event in whole if event.get("cat") != "gpu_user_annotation"]
    marked = [event for event in on_cpu if str(event.get("name", "")).startswith(MARK)]
    lanes: dict[Any, list[float]] = defaultdict(list)
    for event in sorted(_closed(marked, on_cpu) or whole, key=lambda event: float(event["ts"])):
        lane, name = _lane(event), event.get("name")
        if marked or name == "data":
            lanes[lane].append(float(event["dur"]) / 1e6)
        elif name in ("forward", "backward", "optimizer") and lanes[lane]:
            lanes[lane][-1] += float(event["dur"]) / 1e6
    return [np.array(series) for series in lanes.values()]


def _pairs(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that are written as a begin (B) and an end (E), in the form of whole ones."""
    begun, pairs = defaultdict[Any, list[dict[str, Any]]](list), list[dict[str, Any]]()
    marks = [event for event in events if event.get("ph") in ("B", "E") and _seconds(event, "ts")]
    for event in sorted(marks, key=lambda event: float(event["ts"])):
        mine = begun[_lane(event)]
        if event["ph"] == "B":
            mine.append(event)
        elif mine:
            begin = mine.pop()
            pairs.append(begin | {"dur": float(event["ts"]) - float(begin["ts"])})
    return pairs


def _seconds(event: dict[str, Any], name: str) -> bool:
    """Return whether the field `name` of an event is a finite number."""
    try:
        return math.isfinite(float(event[name]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


def _lane(event: dict[str, Any]) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _closed(marked: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the marks of steps without the last of a lane if it has no operations though other lanes have some: the
    profiler opened it at the end of the step before, and closed it at the end of its window."""
    last, worked = dict[Any, float](), dict[Any, float]()
    for event in marked:
        last[_lane(event)] = max(last.get(_lane(event), 0.0), float(event["ts"]))
    marks = set(map(id, marked))
    for event in events:
        if id(event) not in marks:
            worked[_lane(event)] = max(worked.get(_lane(event), 0.0), float(event["ts"]))
    return [
        event
        for event in marked
        if float(event["ts"]) < last[_lane(event)] or worked.get(_lane(event), math.inf) >= last[_lane(event)]
    ]
