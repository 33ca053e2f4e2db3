"""The report: Markdown and PNG for one run or a tree of runs. Reads run folders only; imports no torch.

Equal run folders give an equal report, byte for byte. What it says is in `bench.report.sections`, one file each.
"""

from __future__ import annotations

from pathlib import Path

from bench.cells import cells
from bench.report.page import Page
from bench.report.sections import SECTIONS
from bench.runfolder import find_runs, write_text
from bench.style import styled
from bench.validate import validate


def write_report(root: Path, out: Path, *, baseline: Path | None = None) -> Path:
    """Write the report over the runs in `root` into the folder `out`; the path of its `report.md`.

    With `baseline`, the verdicts against that file stand at its head. Raises ValueError if `root` is no folder or `out`
    cannot be written.
    """
    runs, problems = find_runs(root)
    try:
        out.mkdir(parents=True, exist_ok=True)
        verdicts = validate(root, baseline) if baseline else []
        page = Page(root, out, tuple(cells(runs)), tuple(problems), tuple(verdicts))
        with styled():
            parts = [part for section in SECTIONS.values() if (part := section(page))]
        path = out / "report.md"
        write_text(path, "\n\n".join(parts) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write the report to {out}: {error.strerror}: {error.filename}") from None
    return path
