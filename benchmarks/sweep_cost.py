"""Measures the cost of a sweep of short cells beyond their training, with cells one after the other and side by side
(`timing=off`).

python -m benchmarks.sweep_cost --cells 100

The total is the wall time of the command, report and imports included; training is the sum of `time_s.train`. Both are
of one command, so that other programs slow both. The extra cost of a cell is in processor seconds of all processes:
the difference between a sweep and a sweep of one cell, per further cell, without the time of ranks from ready to
finished. It includes files, audit and timeline. The cost of files is also measured alone, by writing those of some
cells again: the chained records, the result, the four forms of the timeline.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from bench.base.garbage import no_collections
from bench.config.spec import RunSpec
from bench.results.analysis.stream import sort
from bench.results.chain import lines as chained_lines
from bench.results.chain import unlinked
from bench.results.journal import Journal
from bench.results.recompute import header_of, result, sealed
from bench.results.runfolder import EVENTS, METRICS, Run, find_runs, read_records
from bench.timeline import write_timeline
from benchmarks.documents import DOCS
from benchmarks.frame import options, run_command, table
from ddp.core.messages.measurements import Memory
from ddp.process.codec import SLICE_HEAD, decode

CELL = ("model=mlp", "mode=solo", "validate=false")
EPOCHS = 3
"""Some 2 s on a usual core."""
LOOKED_AT = 5
"""Cells whose files are written again; the first twice, as it brings the imports."""
PR_SET_CHILD_SUBREAPER = 36
WAYS = {"one after the other": (), "without audits": ("audit=off",), "side by side": ("timing=off",)}


class SweepCost(NamedTuple):
    """Seconds of one sweep."""

    cells: int
    total: float
    training: float
    besides: float
    """Processor seconds of all processes, but for what ranks took from ready to finished."""
    files: float
    """Processor seconds that the files of a cell take, of what is `besides`."""

    @property
    def ratio(self) -> float:
        return self.total / self.training


def processor_s(run: Run) -> float:
    """Return the processor seconds of a run's ranks from ready to finished, by what they measured of themselves."""
    uses: dict[int, list[Memory]] = {}
    for record in read_records(run.path):
        if isinstance(record, Memory) and record.cpu_s is not None:
            uses.setdefault(record.rank, []).append(record)
    ends = [(mine[0], mine[-1], run.metrics.time_s.rank_wall[rank]) for rank, mine in uses.items()]
    return sum(((last.cpu_s or 0.0) - (first.cpu_s or 0.0)) / (last.at - first.at) * wall for first, last, wall in ends)


def files_s(runs: Iterable[Run], folder: Path) -> float:
    """Return the processor seconds of writing a run's files when it is over: the median of `runs`, each written again."""
    return median(_written_again(run, folder / str(place)) for place, run in enumerate(runs))


def _written_again(run: Run, folder: Path) -> float:
    folder.mkdir()
    header, *lines, last = map(unlinked, chained_lines(run.path / EVENTS))
    slices = [line for line in lines if line.startswith(SLICE_HEAD)]
    events = [header, *(line for line in lines if not line.startswith(SLICE_HEAD))]
    for name, part in ((EVENTS, events), ("slices-0.jsonl", slices)):
        (folder / name).write_bytes(b"".join(line + b"\n" for line in part))
    began = time.process_time()
    with no_collections(), Journal(folder / EVENTS) as journal:
        records = journal.merge()
        spec, end = msgspec.convert(header_of(records).spec, RunSpec), decode(last)
        stream = sort(records[1:], header_of(records).launched)
        metrics = sealed(result([*records, end], stream), journal.end(end))
        write_timeline(folder, stream, spec, header_of(records).launched)
        (folder / METRICS).write_text(metrics.model_dump_json(indent=1))
    return time.process_time() - began


def used() -> float:
    """Return the processor seconds of all processes that this one has started, and theirs, which have ended: those that lost
    their parent become its own."""
    with suppress(ChildProcessError):
        while True:
            os.wait()
    each = resource.getrusage(resource.RUSAGE_CHILDREN)
    return each.ru_utime + each.ru_stime


def measured(cells: int, epochs: int, words: tuple[str, ...]) -> SweepCost:
    """Train a sweep in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-P",
            "-m",
            "bench",
            "-m",
            *CELL,
            f"train.epochs={epochs}",
            f"seed=range({cells})",
            *words,
        ]
        environment = os.environ | {"PYTHONPATH": str(DOCS.parent)}
        begun, before = time.monotonic(), used()
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        total = time.monotonic() - begun
        spent = used() - before
        runs = find_runs(Path(folder) / "runs")[0]
        besides = spent - sum(map(processor_s, runs))
        files = files_s([*runs[:1], *runs[:LOOKED_AT]], Path(folder)) if len(runs) > 1 else 0.0
    return SweepCost(len(runs), total, sum(run.metrics.time_s.train for run in runs), besides, files)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cells", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    load, rows = os.getloadavg()[0], []
    for name, words in WAYS.items():
        one, cost = (measured(cells, asked.epochs, words) for cells in (1, asked.cells))
        each = (cost.besides - one.besides) / max(cost.cells - one.cells, 1)
        trained = f"{cost.training / cost.cells:.1f}"
        parts = (f"{each:.2f}", f"{cost.files:.2f}", f"{each - cost.files:.2f}")
        rows.append((name, cost.cells, trained, f"{cost.ratio:.2f}", *parts))
        print(rows[-1], flush=True)
    heads = (
        "cells",
        "how many",
        "s of training each",
        "total / training",
        "processor s a cell besides",
        "files",
        "rest",
    )
    command = f"`python -m benchmarks.sweep_cost --cells {asked.cells}`"
    about = f"{command}, {os.cpu_count()} cores, load {load:.0f} before it."
    print(table(rows, heads), about, sep="\n\n")


if __name__ == "__main__":
    run_command(main)
