"""Compares the goodput of real processes with virtual time: ten scripted histories of faults, each run in both.

    python -m benchmarks.goodput                 # some five minutes; the table is in reports/goodput
    python -m benchmarks.goodput --write         # and written there

The simulation gets the settings and faults of the run and its measured costs: the steps of each rank, the mean times
of collectives and evaluations, the times to notice a loss and to start a rank. It predicts how these combine. Both
count from the time at which all ranks are ready.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from bench.goodput.simulated import SimulatedTimes
from bench.results.analysis.goodput import goodput, projections
from bench.results.analysis.rank_seconds import PARTS, repetition
from bench.results.analysis.steps import worked
from bench.results.analysis.stream import RunRecords, sort
from bench.results.runfolder import CONFIG, Run, find_runs, read_object, read_records
from bench.results.schema_goodput import Goodput
from bench.runner.resume import config_of
from ddp.backends import world_of
from ddp.core.commands import Drop, Restart
from ddp.core.events import Evaluated, Finished, Progress, Reduced, RoundClosed
from ddp.core.faults import parse
from ddp.core.join_events import Joining
from ddp.settings import make_policy, restarts
from ddp.sim import Costs, Simulation

REPORT = Path(__file__).resolve().parents[1] / "reports" / "goodput" / "real.md"
WORDS = (
    *("model=mlp", "world_size=3", "data.name=digits", "train.epochs=20", "cluster.speeds=[0.05,0.05,0.05]"),
    *("cluster.restart=always", "cluster.deadline_s=5", "checkpoint.every=0", "audit=false"),
    *("report=false", "validate=false"),
)
HISTORIES = (
    ("nccl_cadence", "1@60:crash"),
    ("nccl_sync", "1@60:crash"),
    ("cpu_async", "1@60:crash"),
    ("nccl_cadence", "1@40:crash,2@90:crash"),
    ("nccl_sync", "1@40:crash,2@90:crash"),
    ("cpu_async", "1@40:crash,2@90:crash"),
    ("nccl_cadence", "0@50:raise"),
    ("nccl_sync", "2@30:stall"),
    ("cpu_async", "2@30:crash,1@100:crash"),
    ("nccl_cadence", "0@50:crash,2@70:crash"),
)
POINTS = 3.0
"""Most that goodput and ETTR may differ by."""
HEAD = """# Real against virtual

    python -m benchmarks.goodput --write

Ten scripted histories: three ranks of `mlp` on digits as processes, each at a twentieth of its speed, and the same script in
virtual time at the costs of that run. Counted from when all ranks are ready."""


@dataclass(frozen=True)
class Compared:
    """One history, as it was and as it was simulated."""

    mode: str
    faults: str
    real: Goodput
    virtual: Goodput


def compared(run: Run) -> Compared:
    """Play the history of a run in virtual time."""
    records = list(read_records(run.path))
    stream = sort(records, 0.0)
    assert stream.begun is not None
    ended = max(event.at for event in stream.of(Finished))
    real = goodput(stream, run.metrics.world_size, stream.begun, ended)
    config = config_of(read_object(run.path / CONFIG), run.path)
    settings = {key: value for key, value in config.policy.items() if key != "name"}
    world = world_of(
        config.backend.name,
        run.metrics.world_size,
        next(event.samples for event in stream.ready.values()),
        run.metrics.batch_size,
        run.metrics.epochs_planned,
        deadline_s=config.cluster.deadline_s,
        tolerate_loss=config.cluster.tolerate_loss,
        restarts=restarts(config.cluster.restart),
        least=max(event.least for event in stream.ready.values()),
    )
    policy = make_policy(config.policy["name"], settings)
    faults = tuple(parse(text) for text in run.metrics.scripted_faults)
    times = SimulatedTimes(world.size)
    assert real is not None
    between_s = real.parts.other * real.rank_seconds / sum(event.steps for event in stream.of(Progress))
    simulation = Simulation(policy, world, costs(stream, world.size, between_s), faults=faults, keep=False)
    simulation.measured, simulation.listen = times.measured, times.listen
    simulation.run()
    virtual = projections(repetition(times.seconds(simulation.now)))
    assert virtual is not None
    return Compared(run.metrics.mode, ", ".join(run.metrics.scripted_faults), real, virtual)


def costs(stream: RunRecords, size: int, between_s: float) -> Costs:
    """Return what things cost in a run."""
    s = stream.slices
    seconds, wires = s.stop - s.start, s.stop - s.wire_start
    evaluated = [event.seconds for event in stream.of(Evaluated)]
    starts, notice_s = comings(stream)
    steps = {rank: each.tolist() for rank, each in worked(s).items()}
    meets = len(np.unique(s.seq[s.kind == "exchange"])) / exchanges_in_a_step(stream)
    wire_s = float(wires[s.kind == "exchange"].sum()) / (size * meets) if meets else 0.0
    if closed := [event.sync_s for event in stream.of(RoundClosed) if event.sync_s > 0]:
        wire_s = fmean(closed)  # with what it kept ranks from training besides, as the policy sees it
    joins, copies = seconds[s.kind == "join"], seconds[s.kind == "copy"]
    join_s = float(np.median(joins)) if joins.size else 0.0
    return Costs(
        lambda rank, step: steps[rank][step % len(steps[rank])],
        between_s=between_s,
        latency_s=0.0005,
        wire=lambda members, number: join_s if number == 1 else wire_s,
        reduce_s=median([event.seconds for event in stream.of(Reduced)] or [0.0]),
        copy_s=float(np.median(copies)) if copies.size else 0.0,
        evaluate_s=lambda rank: fmean(evaluated),
        start_s=lambda rank, life: starts.get((rank, life), 0.0),
        notice_s=notice_s,
        report_s=0.05,
    )


def exchanges_in_a_step(stream: RunRecords) -> float:
    """Return how many collectives a step of all has; 1 where ranks meet in rounds."""
    if not any(plan.in_step for _, plan in stream.plans):
        return 1.0
    steps = max(sum(event.steps for event in stream.of(Progress) if event.rank == rank) for rank in stream.ready)
    return max(len(np.unique(stream.slices.seq[stream.slices.kind == "exchange"])) / steps, 1.0)


def comings(stream: RunRecords) -> tuple[dict[tuple[int, int], float], float]:
    """Return (rank, life) -> seconds until it was there; and those until a loss was noticed, the mean."""
    starts, begun, notices = dict[tuple[int, int], float](), dict[int, tuple[int, float]](), list[float]()
    for at, move in stream.moves:
        match move:
            case Drop():
                ends = stream.slices.stop[stream.slices.places(move.rank)]
                notices.append(at - float(ends[ends <= at].max()))
            case Restart():
                begun[move.rank] = move.life, at
            case Joining():
                life, since = begun[move.rank]
                starts[move.rank, life] = at - since
    return starts, fmean(notices)


def table(rows: list[Compared]) -> str:
    """Return the histories as Markdown: the figures of both, and the largest difference of a part."""
    lines = [
        "| mode | faults | goodput | virtual | ETTR | virtual | largest difference of a part, points |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        part, points = largest(row)
        figures = (row.real.goodput, row.virtual.goodput, row.real.ettr, row.virtual.ettr)
        shares = " | ".join(f"{100 * figure:.1f} %" for figure in figures)
        lines.append(f"| {row.mode} | {row.faults} | {shares} | {part} {points:+.1f} |")
    return "\n".join(lines)


def largest(row: Compared) -> tuple[str, float]:
    """Return the part in which the simulation differs most, and by how many points."""
    apart = {part: 100 * (getattr(row.virtual.parts, part) - getattr(row.real.parts, part)) for part in PARTS}
    part = max(apart, key=lambda name: abs(apart[name]))
    return part, apart[part]


def main() -> int:
    """Run the command: 1 if goodput or ETTR of a history differ by more than three points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into reports/goodput")
    parser.add_argument("--runs", type=Path, help="compare the runs there, train nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
        for number, (mode, faults) in enumerate(HISTORIES if asked.runs is None else ()):
            words = (f"mode={mode}", f"cluster.faults=[{faults}]", f"output={folder}/{number}")
            command = [sys.executable, "-m", "bench", *WORDS, *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
        rows = [compared(run) for run in find_runs(asked.runs or Path(folder))[0]]
    text = table(rows)
    print(text)
    if asked.write:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(f"{HEAD}\n\n{text}\n", encoding="utf-8")
    apart = [abs(row.real.goodput - row.virtual.goodput) for row in rows]
    apart += [abs(row.real.ettr - row.virtual.ettr) for row in rows]
    return int(100 * max(apart) > POINTS)


if __name__ == "__main__":
    sys.exit(main())
