"""Formats of others in which the timeline of a run can be written: one file for each, which must not know of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.results.analysis.stream import RunRecords
from bench.timeline.about import Named
from bench.timeline.formats import chakra

FORMATS: dict[str, Callable[[Path, RunRecords, Named], list[Path]]] = {
    "chakra": chakra.write,
}
"""Name -> writes the run into a folder, and returns the files. Raises ValueError if it cannot hold the run, OSError."""
