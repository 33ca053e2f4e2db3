"""The timeline of a run without a folder, from its records. `ddp.monitor.harness` imports `save` by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.base.writing import write_text
from bench.results.analysis.idle import gaps
from bench.results.analysis.stream import sort
from bench.timeline import started, table
from bench.timeline.about import TimelineHeader
from bench.timeline.html import page
from bench.timeline.lanes import make_trace
from ddp.process.codec import decode


def save(form: str, path: Path, config: dict[str, Any], launched: float, lines: Sequence[bytes]) -> None:
    """Write records, in order of time, as `json`, `csv` or `html`. Raises OSError."""
    spec = msgspec.convert(config, TimelineHeader, strict=False)
    spec.speeds = tuple(config["cluster"]["speeds"])
    stream = sort([decode(line) for line in lines], launched)
    idle = gaps(stream)
    trace = make_trace(stream, spec, launched, idle, started(stream.zero))
    forms: dict[str, Callable[[], str]] = {
        "json": lambda: trace.to_json().decode(),
        "csv": lambda: table(stream),
        "html": lambda: page(trace, spec, idle),
    }
    write_text(path, forms[form]())
