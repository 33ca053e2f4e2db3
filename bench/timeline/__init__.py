"""The timeline of a run: `timeline.json` (Chrome trace, opens in Perfetto), with `.html`, `.csv` and `.png` beside it.

Owns which files there are. `lanes` says what a timeline holds, `html` and `bench.timeline.figure` show it, `rewrite` makes
it again from a run folder, `serve` hands it to Perfetto.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.base.writing import write_text
from bench.results.analysis.idle import gaps
from bench.results.analysis.stream import RunRecords, sort
from bench.timeline.about import Named
from bench.timeline.lanes import make_trace
from ddp import regular_files
from ddp.process.clock import now
from ddp.process.codec import Record
from ddp.process.operations import Operation, file_of, read

__all__ = ["begin_timeline", "draw", "launched_at", "make_trace", "write_timeline"]
FILES = ("timeline.json", "timeline.html", "timeline.csv", "timeline.png")
LARGEST = 1 << 30
"""Bytes of a trace that is read again, at most."""


def begin_timeline(folder: Path, spec: Named, launched: float) -> None:
    """Write a `timeline.json` without events: from here on whatever becomes of the run leaves a trace that opens, and when
    the run was launched is known. Raises OSError."""
    trace = make_trace(sort((), launched), spec, launched, (), started(folder, launched, launched))
    write_text(folder / "timeline.json", trace.to_json().decode())


def write_timeline(
    folder: Path, records: Sequence[Record] | RunRecords, spec: Named, launched: float, *, picture: bool = True
) -> None:
    """Write `timeline.json`, `.html`, `.csv` and, unless it is not wanted, `.png` of `records` into `folder`; `launched`:
    when, seconds on the clock of the records. Raises OSError."""
    from bench.timeline.html import page

    stream = sort(records, launched)
    idle = gaps(stream)
    trace = make_trace(stream, spec, launched, idle, started(folder, launched, stream.zero), _operations(folder, spec))
    write_text(folder / "timeline.json", trace.to_json().decode())
    write_text(folder / "timeline.html", page(trace, spec, idle))
    write_text(folder / "timeline.csv", table(stream))
    if picture:
        draw(stream, spec, folder / "timeline.png")


def _operations(folder: Path, spec: Named) -> dict[int, list[Operation]]:
    """Return what torch.profiler recorded in each rank, where it did. What a rank left torn is not shown."""
    operations = {}
    for rank in range(spec.world_size):
        with suppress(OSError, ValueError):
            operations[rank] = read(file_of(folder, rank))
    return operations


def draw(stream: RunRecords, spec: Named, path: Path) -> None:
    """Draw the run into `path` (PNG), if anything was measured. Imports matplotlib: not while a run is timed."""
    from bench.timeline.figure import draw as drawn

    drawn(stream, spec, path)


def launched_at(folder: Path) -> float | None:
    """Return when the run was launched, on the clock of its records, by its timeline; None if it has none."""
    time = _about(folder).get("launched")
    return float(time) if isinstance(time, (int, float)) and math.isfinite(time) else None


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads(regular_files.content(folder / "timeline.json", LARGEST))["otherData"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def started(folder: Path | None, launched: float, zero: float) -> str | None:
    """Return the wall clock at `zero`, the launch, or of a run that went on, the first one: as an earlier timeline of the
    run has it, else by the clock of this moment."""
    about = _about(folder) if folder is not None else {}
    if about.get("launched") == launched and "started" in about:
        return str(about["started"])
    ago = now() - zero
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() - ago, UTC).isoformat() if ago >= 0 else None


def table(stream: RunRecords) -> str:
    """Return the slices as CSV: rank, kind, start and seconds since launch, seconds waited in it for other ranks."""
    s = stream.slices
    waited: Any = (s.wire_start - s.start) * (s.kind == "exchange")
    columns = (s.rank, s.kind, s.start - stream.zero, s.stop - s.start, waited, s.seq, s.bytes)
    lines = ["rank,kind,start_s,seconds,waited_s,seq,bytes"]
    for rank, kind, start, seconds, wait, seq, size in zip(*(column.tolist() for column in columns), strict=True):
        lines.append(f"{rank},{kind},{start:.6f},{seconds:.6f},{wait:.6f},{seq},{size}")
    return "\n".join([*lines, ""])
