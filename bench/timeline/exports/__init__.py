"""Foreign formats in which the timeline of a run can be written. Each has a module, which must not know the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.results.analysis.stream import RunRecords
from bench.timeline.about import Named
from bench.timeline.exports import chakra

FORMATS: dict[str, Callable[[Path, RunRecords, Named], list[Path]]] = {
    "chakra": chakra.write,
}
"""Name -> function that writes a run into a folder and returns the files. Raises ValueError if the format cannot hold
the run, OSError."""
