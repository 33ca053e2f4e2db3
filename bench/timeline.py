"""The timeline of a run: `timeline.json` (Chrome trace, opens in Perfetto), with `.csv` and `.png` beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.spec import RunSpec
from ddp.runtime.codec import Record


def write_timeline(folder: Path, records: Sequence[Record], spec: RunSpec, launched: float) -> None:
    """Write the timeline of `records` into `folder`; `launched` is its zero, seconds on the clock of the records."""
