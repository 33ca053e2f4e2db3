"""Results of cells as lines of JSON, so that a campaign can be interrupted and continued. Judges nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.base.writing import write_text
from bench.faults.meaning import FaultCell, FaultOutcome
from bench.faults.outcome import FaultResult
from ddp import regular_files

ROOT = Path(__file__).resolve().parents[2]
FILE = "cells.jsonl"
Key = tuple[str, str, int]


def revision() -> str:
    """Return a digest of the sources that decide results. Cells that were played with other sources are played
    again."""
    sources = sorted([*(ROOT / "ddp").rglob("*.py"), *(ROOT / "bench" / "faults").glob("*.py")])
    return hashlib.sha256(b"".join(regular_files.content(path) for path in sources)).hexdigest()[:12]


def key(result: FaultResult) -> Key:
    """Return the key of a result."""
    return str(result.cell), result.world, result.size


class ResultStore:
    """The results in a folder that were played with the present sources."""

    def __init__(self, folder: Path, fresh: Collection[Key] = ()) -> None:
        """Read existing results; delete those of `fresh`. Raises OSError, ValueError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._revision = folder / FILE, revision()
        rows = list(self._read()) if self._path.exists() else []
        kept = [(line, result) for line, result in rows if result is None or key(result) not in fresh]
        self.found = {key(result): result for _, result in kept if result is not None}
        if len(kept) < len(rows):
            write_text(self._path, "".join(f"{line}\n" for line, _ in kept))

    def add(self, result: FaultResult) -> None:
        """Append a result."""
        self.found[key(result)] = result
        line = json.dumps({"revision": self._revision, **body(result)})
        with self._path.open("ab+") as file:
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")  # after a line that was cut
            file.write(line.encode() + b"\n")

    def _read(self) -> Iterator[tuple[str, FaultResult | None]]:
        """Yield each line with its result; None: of other sources, or the line was cut."""
        for number, line in enumerate(regular_files.content(self._path).decode(errors="replace").splitlines(), 1):
            result = None
            try:
                row = json.loads(line)
                if row.pop("revision") == self._revision:
                    result = result_of(row)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                if line.endswith("}"):
                    raise ValueError(f"{self._path}, line {number}: no result of a cell ({error})") from None
            yield line, result


def body(result: FaultResult) -> dict[str, Any]:
    """Return a result for JSON, with its verdict for readers."""
    return {**asdict(result), "verdict": result.verdict}


def result_of(row: dict[str, Any]) -> FaultResult:
    """Return the result from the output of `body`. Raises KeyError, TypeError, ValueError."""
    rest = {name: value for name, value in row.items() if name not in ("cell", "outcome", "verdict")}
    outcome = None if row["outcome"] is None else FaultOutcome(row["outcome"])
    return FaultResult(cell=FaultCell(**row["cell"]), outcome=outcome, **rest)
