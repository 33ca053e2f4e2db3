"""The timeline of a run: `timeline.json` (Chrome trace, opens in Perfetto), with `.csv` and `.png` beside it.

Owns which files there are. `lanes` says what a timeline holds, `bench.timeline_figure` draws.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.analysis.idle import gaps
from bench.analysis.stream import Stream, sort
from bench.runfolder import write_text
from bench.spec import RunSpec
from bench.timeline.lanes import make_trace
from bench.timeline_figure import draw
from ddp.runtime.clock import now
from ddp.runtime.codec import Record

__all__ = ["draw", "make_trace", "write_timeline"]


def write_timeline(
    folder: Path, records: Sequence[Record], spec: RunSpec, launched: float, *, picture: bool = True
) -> None:
    """Write `timeline.json`, `.csv` and, unless it is not wanted, `.png` of `records` into `folder`; `launched`
    is their zero, seconds on the clock of the records. Raises OSError."""
    stream = sort(records, launched)
    idle = gaps(stream)
    trace = make_trace(stream, spec, launched, idle, _started(folder, launched))
    write_text(folder / "timeline.json", trace.to_json())
    write_text(folder / "timeline.csv", _table(stream, launched))
    if picture:
        draw(stream, spec, launched, folder / "timeline.png")


def _started(folder: Path, launched: float) -> str | None:
    """The wall clock at launch: as an earlier timeline of the run has it, else by the clock of this moment."""
    try:
        about = json.loads((folder / "timeline.json").read_text(encoding="utf-8"))["otherData"]
        if about["launched"] == launched:
            return str(about["started"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    ago = now() - launched
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() - ago, UTC).isoformat() if ago >= 0 else None


def _table(stream: Stream, launched: float) -> str:
    """The slices as CSV: rank, kind, start and seconds since launch, seconds waited in it for other ranks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "kind", "start_s", "seconds", "waited_s", "seq", "bytes"])
    s = stream.slices
    exchange = s.kind == "exchange"
    waited: Any = (s.wire_start() - s.start) * exchange
    columns = (s.rank, s.kind, s.start - launched, s.stop - s.start, waited, s.seq, s.bytes)
    for rank, kind, start, seconds, wait, seq, size in zip(*(c.tolist() for c in columns), strict=True):
        writer.writerow([rank, kind, f"{start:.6f}", f"{seconds:.6f}", f"{wait:.6f}", seq, size])
    return text.getvalue()
