"""The timeline of a run: `timeline.json` (Chrome trace, opens in Perfetto), with `.html`, `.csv` and `.png` beside it.

Owns the set of files. `lanes` builds the content, `html` and `bench.timeline.figure` show it, `rewrite` makes it again
from a run folder, `serve` serves it to Perfetto.
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
"""Most bytes of an existing trace that is read."""


def begin_timeline(folder: Path, spec: Named, launched: float) -> None:
    """Write a `timeline.json` without events when the run begins. So a valid trace, and the time of launch, exist
    however the run ends. Raises OSError."""
    trace = make_trace(sort((), launched), spec, launched, (), started(launched))
    write_text(folder / "timeline.json", trace.to_json().decode())


def write_timeline(
    folder: Path, records: Sequence[Record] | RunRecords, spec: Named, launched: float, *, picture: bool = True
) -> None:
    """Write `timeline.json`, `.html`, `.csv` and, if `picture`, `.png` of `records` into `folder`. `launched`: seconds
    on the clock of the records. The wall clock time of the launch is that of an earlier timeline; without one it is
    not known. Raises OSError."""
    from bench.timeline.html import page

    stream = sort(records, launched)
    idle = gaps(stream)
    trace = make_trace(stream, spec, launched, idle, _started(folder, launched), _operations(folder, spec))
    write_text(folder / "timeline.json", trace.to_json().decode())
    write_text(folder / "timeline.html", page(trace, spec, idle))
    write_text(folder / "timeline.csv", table(stream))
    if picture:
        draw(stream, spec, folder / "timeline.png")


def _operations(folder: Path, spec: Named) -> dict[int, list[Operation]]:
    """Return rank -> recordings of torch.profiler. Incomplete recordings are left out."""
    operations = {}
    for rank in range(spec.world_size):
        with suppress(OSError, ValueError):
            operations[rank] = read(file_of(folder, rank))
    return operations


def draw(stream: RunRecords, spec: Named, path: Path) -> None:
    """Draw the run into `path` (PNG), if anything was measured. Imports matplotlib, so it must not be called while a
    run is timed."""
    from bench.timeline.figure import draw as drawn

    drawn(stream, spec, path)


def launched_at(folder: Path) -> float | None:
    """Return the time of launch on the clock of the records, from the run's timeline; None if it has none."""
    time = _about(folder).get("launched")
    return float(time) if isinstance(time, (int, float)) and math.isfinite(time) else None


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads(regular_files.content(folder / "timeline.json", LARGEST))["otherData"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _started(folder: Path, launched: float) -> str | None:
    about = _about(folder)
    known = about.get("started") if about.get("launched") == launched else None
    return known if isinstance(known, str) else None


def started(launched: float) -> str | None:
    """Return the wall clock time of a launch, in seconds on this machine's clock of records, which begins anew when the
    machine is booted; None if it is still to come."""
    ago = now() - launched
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() - ago, UTC).isoformat() if ago >= 0 else None


def table(stream: RunRecords) -> str:
    """Return the slices as CSV: rank, kind, start (seconds since launch), seconds, seconds of waiting for other ranks,
    collective, bytes."""
    s = stream.slices
    waited: Any = (s.wire_start - s.start) * (s.kind == "exchange")
    columns = (s.rank, s.kind, s.start - stream.zero, s.stop - s.start, waited, s.seq, s.bytes)
    lines = ["rank,kind,start_s,seconds,waited_s,seq,bytes"]
    for rank, kind, start, seconds, wait, seq, size in zip(*(column.tolist() for column in columns), strict=True):
        lines.append(f"{rank},{kind},{start:.6f},{seconds:.6f},{wait:.6f},{seq},{size}")
    return "\n".join([*lines, ""])
