"""The report: Markdown and PNG for one run or a tree of runs. Reads run folders only; imports no torch."""

from __future__ import annotations

from pathlib import Path


def write_report(root: Path, out: Path, *, baseline: Path | None = None) -> Path:
    """Write the report over the runs in `root` into the folder `out`; the path of its `report.md`.

    With `baseline`, the verdicts against that file stand at its head. Raises ValueError if `root` is no folder.
    """
    raise NotImplementedError
