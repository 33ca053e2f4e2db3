"""Measures the seconds from a kill to full strength, and their parts: three ranks on digits, every mode, every seed.

    python -m benchmarks.rejoin [--models mlp,resnet_graph] [--seeds 2] [--write]

`--write` writes the table into reports/faults/rejoin.md. Use a machine with no other work. Exit code 1 if the median or the
worst is beyond its limit.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from bench.results.runfolder import EVENTS, find_runs
from benchmarks import frame
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Failed, Lost, Progress, Ready, Resumed
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.codec import body, decode

MODES = ("nccl_sync", "nccl_cadence", "nccl_async", "cpu_sync", "cpu_cadence", "cpu_async", "zero1", "zero2", "zero3")
LENGTHS = {"mlp": ("train.epochs=60",), "resnet_graph": ("train.epochs=5", "train.batch_size=16")}
WORDS = ("world_size=3", "data.name=digits", "cluster.faults=[1@60:crash]", "checkpoint.spacing_s=0")
QUIET = ("cluster.restart=always", "report=false", "validate=false", "audit=off")
MEDIAN_S, WORST_S = 2, 5
"""Most seconds from a kill to full strength."""
HEAD = """# From a kill to full strength

    python -m benchmarks.rejoin --write

One of three ranks on two cores kills itself (SIGKILL) before its step 60. `cluster.restart=always` starts it again.
Seconds, median (worst). *Process*: from the detection of the loss until a process with model and data is there.
*State*: until it has the others' state; it waits for the end of a window. *Work*: until it reports its first steps.
In `zero*` all ranks restart: until the checkpoint is loaded, until all are ready, until one reports steps."""


def stretches(events: Path) -> tuple[float, float, float]:
    """Return the seconds of the three stretches. Raises StopIteration for a run in which nobody came back."""
    lines = events.read_bytes().splitlines()
    records = [(body(line)["at"], decode(line)) for line in lines]
    if again := next((record for _, record in records if isinstance(record, Resumed)), None):
        ready = max(at for at, record in records if isinstance(record, Ready) and at > again.at)
        works = next(at for at, record in records if isinstance(record, Progress) and at > ready)
        return again.since_s[1], ready - again.at, works - ready
    lost = next(at for at, record in records if isinstance(record, Drop | Lost | Failed))
    there = next(at for at, record in records if isinstance(record, Joining))
    joined, rank = next((at, record.rank) for at, record in records if isinstance(record, Joined))
    works = next(at for at, r in records if isinstance(r, Progress) and r.rank == rank and at > joined)
    return there - lost, joined - there, works - joined


def _row(model: str, mode: str, kills: list[tuple[float, float, float]]) -> tuple[str, ...]:
    columns = [*zip(*kills, strict=True), [sum(kill) for kill in kills]]
    return model, mode, str(len(kills)), *(f"{median(each):.2f} ({max(each):.2f})" for each in columns)


def main() -> int:
    """Run the command: 1 if full strength took longer than it may."""
    parser = frame.options(__doc__, "write the table into reports/faults/rejoin.md")
    parser.add_argument("--models", default=",".join(LENGTHS), help="names, with commas")
    parser.add_argument("--seeds", type=int, default=2, help="kills in each mode")
    asked = parser.parse_args()
    load = frame.machine_load()
    rows, whole = [], []
    for model in asked.models.split(","):
        kills = defaultdict(list)
        seeds = f"seed={','.join(map(str, range(asked.seeds)))}"
        with tempfile.TemporaryDirectory(prefix="rejoin-") as folder:
            words = (f"model={model}", *LENGTHS[model], *WORDS, *QUIET, seeds, f"output={folder}")
            frame.bench("-m", f"mode={','.join(MODES)}", *words, timeout=3600)
            for run in find_runs(Path(folder))[0]:
                kills[run.path.parts[-2]].append(stretches(run.path / EVENTS))
        rows += [_row(model, mode, kills[mode]) for mode in MODES]
        whole += [sum(kill) for each in kills.values() for kill in each]
    text = frame.table(rows, ("model", "mode", "kills", "process", "state", "work", "full strength"), 2)
    middle, worst = median(whole), max(whole)
    ending = f"{len(whole)} kills: median {middle:.2f} s (at most {MEDIAN_S}), worst {worst:.2f} s (at most {WORST_S})."
    print(text, ending, sep="\n\n")
    if asked.write:
        frame.write_report("faults/rejoin.md", HEAD, load, text, ending)
    return int(middle > MEDIAN_S or worst > WORST_S)


if __name__ == "__main__":
    frame.run_command(main)
