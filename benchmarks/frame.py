"""What measurements share: the options of their commands, runs of `bench`, tables in Markdown, pages in `reports`.

`benchmarks.documents` writes tables between marks of a document."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

REPORTS = Path(__file__).resolve().parents[1] / "reports"


def options(doc: str | None, write: str = "") -> argparse.ArgumentParser:
    """Return the parser of a measurement whose module has the text `doc`. `write`: what its option `--write` does."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if write:
        parser.add_argument("--write", action="store_true", help=write)
    return parser


def bench(*words: object, **how: Any) -> None:
    """Run `python -m bench` with these words, without its output. `how`: further arguments of `subprocess.run`. Raises
    CalledProcessError."""
    command = [sys.executable, "-m", "bench", *map(str, words)]
    subprocess.run(command, **{"check": True, "stdout": subprocess.DEVNULL, **how})


def table(rows: Iterable[Any], headers: Sequence[str] | str = "keys", left: int | None = None) -> str:
    """Return a table in Markdown of rows of cells, or of dictionaries. Columns from `left` on are aligned to the right."""
    listed = list(rows)
    align = None if left is None else ["left"] * left + ["right"] * (len(headers) - left)
    return tabulate(
        listed, headers, tablefmt="github" if align is None else "pipe", disable_numparse=True, colalign=align
    )


def write_report(place: str, *parts: str) -> None:
    """Write a page below `reports`, its parts apart by a line."""
    path = REPORTS / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip("\n") for part in parts) + "\n", encoding="utf-8")
