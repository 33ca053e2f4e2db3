"""Measures the seconds from a kill to full strength, and their parts: three ranks on digits, every mode, two seeds.

    python -m benchmarks.rejoin [MODEL]     (default: mlp)

Times count from the detection of the loss: until the rank runs again (a process with model and data), until it has the
others' state (the wait for the end of a window, and the transfer), until it has reported work. If all ranks restart
from a checkpoint (`zero*`): until the checkpoint is loaded, until all are ready, until one has reported work.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.results.runfolder import EVENTS, find_runs
from benchmarks.frame import bench, run_command
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Progress, Ready, Resumed
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.codec import body, decode

MODES = ("nccl_sync", "nccl_cadence", "nccl_async", "cpu_sync", "cpu_cadence", "cpu_async", "zero1", "zero2", "zero3")
LENGTHS = {"mlp": ("train.epochs=60",), "resnet_graph": ("train.epochs=5", "train.batch_size=16")}
WORDS = ("world_size=3", "data.name=digits", "cluster.faults=[1@60:crash]", "checkpoint.spacing_s=0")
QUIET = ("cluster.restart=always", "report=false", "validate=false", "audit=off", "seed=0,1")


def stretches(events: Path) -> tuple[float, float, float]:
    """Return the seconds of the three stretches. Raises StopIteration for a run in which nobody came back."""
    lines = events.read_bytes().splitlines()
    records = [(body(line)["at"], decode(line)) for line in lines]
    if again := next((record for _, record in records if isinstance(record, Resumed)), None):
        ready = max(at for at, record in records if isinstance(record, Ready) and at > again.at)
        works = next(at for at, record in records if isinstance(record, Progress) and at > ready)
        return again.since_s[1], ready - again.at, works - ready
    lost = next(at for at, record in records if isinstance(record, Drop))
    there = next(at for at, record in records if isinstance(record, Joining))
    joined, rank = next((at, record.rank) for at, record in records if isinstance(record, Joined))
    works = next(at for at, r in records if isinstance(r, Progress) and r.rank == rank and at > joined)
    return there - lost, joined - there, works - joined


def main() -> None:
    """Run the command."""
    model = sys.argv[1] if sys.argv[1:] else "mlp"
    words = (f"model={model}", *LENGTHS[model], *WORDS)
    with tempfile.TemporaryDirectory(prefix="rejoin-") as folder:
        bench("-m", f"mode={','.join(MODES)}", *words, *QUIET, f"output={folder}", timeout=3600)
        found = {run.path: stretches(run.path / EVENTS) for run in find_runs(Path(folder))[0]}
    for path, parts in found.items():
        print(f"{path.parts[-2]:14}", *(f"{seconds:.3f}" for seconds in parts), f"= {sum(parts):.3f} s")
    whole = [sum(parts) for parts in found.values()]
    middle = [median(each) for each in zip(*found.values(), strict=True)]
    print(
        f"{len(whole)} kills: median {median(whole):.3f} s, worst {max(whole):.3f} s; medians of the stretches", *middle
    )


if __name__ == "__main__":
    run_command(main)
