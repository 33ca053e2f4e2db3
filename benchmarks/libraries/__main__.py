"""Run the sections that are asked for, or all."""

from __future__ import annotations

import io
import statistics
import subprocess
import sys

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from tabulate import tabulate

from benchmarks import frame
from benchmarks.libraries.charts import charts
from benchmarks.libraries.compare import compare
from benchmarks.libraries.files import failing
from benchmarks.libraries.means import averaging
from benchmarks.libraries.records import records
from benchmarks.libraries.vision import augmenting, decoding, reading

IMPORT = """
import psutil, time
{before}
held, began = psutil.Process().memory_info().rss, time.process_time()
import {module}
spent = time.process_time() - began
print(spent, (psutil.Process().memory_info().rss - held) / 1e6)
"""
IMPORTS = {
    "torchvision": ("import torch, PIL.Image", "torchvision.datasets, torchvision.transforms.v2"),
    "numba": ("import torch, numpy", "ddp.replica.memory.numba_kernels"),
    "jsonschema": ("", "jsonschema"),
    "tabulate": ("", "tabulate"),
    "rich": ("", "rich.console"),
    "rich (tables, after the console)": ("import rich.console", "rich.table"),
    "pydantic": ("", "pydantic.main"),
    "msgspec": ("", "msgspec"),
    "bench.results.schema (after pydantic)": ("import pydantic.main", "bench.results.schema"),
}


def imports() -> None:
    """CPU seconds and resident memory that a process spends to import a library, over what it has anyway."""
    print("imports: seconds on the CPU and MB, median of 5")
    for name, (before, module) in IMPORTS.items():
        command = [sys.executable, "-c", IMPORT.format(before=before, module=module)]
        told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(5)]
        seconds, size = (statistics.median(map(float, column)) for column in zip(*told, strict=True))
        print(f"  {name:<44} {seconds:.2f} s {size:6.0f} MB")


def tables() -> None:
    """A table of 200 rows and 9 columns for the terminal."""
    rows = [[f"cell {row}", *(f"{row * column / 7:.3f}" for column in range(8))] for row in range(200)]
    heads = ["cell", *(f"column {column}" for column in range(8))]

    def by_rich() -> str:
        table = Table(*heads, box=box.SIMPLE, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        out = io.StringIO()
        Console(width=1000, file=out).print(table)
        return out.getvalue()

    compare(
        "a table of 200 rows", {"tabulate": lambda: tabulate(rows, heads, disable_numparse=True), "rich": by_rich}, 5
    )


SECTIONS = (imports, failing, reading, decoding, augmenting, averaging, records, tables, charts)


def main() -> None:
    """Run the sections that are asked for, or all."""
    torch.set_num_threads(1)
    asked = sys.argv[1:]
    if unknown := set(asked) - {section.__name__ for section in SECTIONS}:
        raise SystemExit(
            f"no section {', '.join(sorted(unknown))}; there are {', '.join(s.__name__ for s in SECTIONS)}"
        )
    for section in SECTIONS:
        if not asked or section.__name__ in asked:
            section()


if __name__ == "__main__":
    frame.run_command(main)
