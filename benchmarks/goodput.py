"""Compares the goodput of real processes with virtual time: ten scripted histories of faults, each run in both.

    python -m benchmarks.goodput                 # some five minutes; the table is in reports/goodput
    python -m benchmarks.goodput --write         # and written there

The simulation gets the settings and faults of the run and its measured costs: the steps of each rank, the averages in
their order, the mean time of an evaluation, the times to notice a loss, to start a rank and to hand it the state. It
predicts how these combine. Both count from the first step.
"""

from __future__ import annotations

import math
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median

import numpy as np

from bench.goodput.simulated import SimulatedTimes
from bench.results.analysis.goodput import goodput, histories_of, projections
from bench.results.analysis.histories import Histories
from bench.results.analysis.rank_seconds import PARTS, repetition
from bench.results.analysis.steps import steps, worked
from bench.results.analysis.stream import RunRecords, Slices, sort
from bench.results.runfolder import CONFIG, Run, find_runs, read_object, read_records
from bench.results.schema_goodput import Goodput
from bench.runner.saved_config import config_of
from benchmarks import frame
from ddp.backends import world_of
from ddp.comm.transports import memory
from ddp.core.messages.commands import Drop, Restart
from ddp.core.messages.events import Evaluated, Finished, Progress, Reduced, RoundClosed
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.settings.faults import Fault, parse
from ddp.engine.loop import REPORT_S
from ddp.settings import make_policy, restarts
from ddp.sim import Costs, Simulation

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

Ten scripts of faults, each played twice: by three processes that train `mlp` at a twentieth of their speed, and in
virtual time at the costs of that run. Shares of the time from the first step on. *Load*: processes of the whole
machine that used or waited for a core as the run began."""


@dataclass(frozen=True)
class Compared:
    """One history, as it was and as it was simulated."""

    mode: str
    faults: str
    real: Goodput
    virtual: Goodput
    load: float
    """Processes that ran or waited for a core as the run began."""


def compared(run: Run) -> Compared:
    """Play the history of a run in virtual time."""
    records = list(read_records(run.path))
    stream = sort(records, 0.0)
    s = stream.slices
    begun = float(
        s.start[s.kind == "data"].min()
    )  # under load, the coordinator may order work long after all were ready
    ended = max(event.at for event in stream.of(Finished))
    real = goodput(stream, run.metrics.world_size, begun, ended)
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
    histories = histories_of(stream, world.size, begun, ended)

    def rounds() -> int:
        return simulation.coordinator.cohort.rounds

    simulation = Simulation(
        policy, world, costs(stream, histories, between_s, faults, rounds), faults=faults, keep=False
    )
    simulation.measured, simulation.listen = times.measured, times.listen
    simulation.run()
    virtual = projections(repetition(times.seconds(simulation.now)))
    assert virtual is not None
    load = float(str(run.metrics.env["load_1min"]))
    return Compared(run.metrics.mode, ", ".join(run.metrics.scripted_faults), real, virtual, load)


def costs(
    stream: RunRecords, histories: Histories, between_s: float, faults: Sequence[Fault], rounds: Callable[[], int]
) -> Costs:
    """Return what things cost in a run. `rounds`: returns how many averages have begun. Each costs what it did in the
    run: the first ones cost more, the policy sizes windows by them, and other windows would lose other steps."""
    s = stream.slices
    seconds, wires = s.stop - s.start, s.stop - s.wire_start
    evaluated = [event.seconds for event in stream.of(Evaluated)]
    starts, notice_s = comings(stream, histories)
    meets = len(np.unique(s.seq[s.kind == "exchange"])) / exchanges_in_a_step(stream)
    wire_s = float(wires[s.kind == "exchange"].sum()) / (histories.size * meets) if meets else 0.0
    # With what it kept ranks from training besides, as the policy sees it.
    closed = [(event.round, event.sync_s) for event in stream.of(RoundClosed) if event.sync_s > 0] or [(0, wire_s)]
    copies, join_s = seconds[s.kind == "copy"], joins_s(s)
    own = {rank: step_seconds(stream, rank, faults) for rank in stream.ready}
    return Costs(
        lambda rank, step: own[rank][min(step, len(own[rank]) - 1)],
        between_s=between_s,
        latency_s=0.0005,
        wire=lambda members, number: join_s if number == 1 else of_round(closed, rounds() - 1),
        reduce_s=median([event.seconds for event in stream.of(Reduced)] or [0.0]),
        joins_alone=any(event.transport == memory.Transport.name for event in stream.ready.values()),
        copy_s=float(np.median(copies)) if copies.size else 0.0,
        hand_s=fmean([event.seconds for event in stream.of(Joined)] or [0.0]),
        evaluate_s=lambda rank: fmean(evaluated),
        start_s=lambda rank, life: starts.get((rank, life), 0.0),
        notice_s=notice_s,
        report_s=REPORT_S,
    )


def step_seconds(stream: RunRecords, rank: int, faults: Sequence[Fault]) -> list[float]:
    """Return the seconds of each step of a rank, in order; the last one is the median, for any step beyond.

    A killed process has not written its last slices: its missing steps are medians, so that the first step of the next
    process, which takes longest, is in its place."""
    begins, (own, lives) = steps(stream.slices)[rank][0], (worked(stream.slices)[rank], [0.0])
    lives += [at for at, move in stream.moves if isinstance(move, Drop) and move.rank == rank]
    ends = sorted(fault.step for fault in faults if fault.rank == rank)
    typical, filled = float(np.median(own)), list[float]()
    for number, since in enumerate(lives):
        until = lives[number + 1] if number + 1 < len(lives) else math.inf
        filled += own[(begins >= since) & (begins < until)].tolist()
        if until < math.inf:
            filled += [typical] * (ends[number] - len(filled))
    return [*filled, typical]


def joins_s(slices: Slices) -> float:
    """Return the mean seconds in which a rank forms a new group."""
    joins = slices.kind == "join"
    if not joins.any():
        return 0.0
    return float((slices.stop - slices.start)[joins].mean())


def of_round(values: Sequence[tuple[int, float]], number: int) -> float:
    """Return the value of a round, of (round, value) in ascending order; of the next one if it has none, or of the last."""
    return values[min(bisect_left(values, number, key=itemgetter(0)), len(values) - 1)][1]


def exchanges_in_a_step(stream: RunRecords) -> float:
    """Return how many collectives a step of all has; 1 where ranks meet in rounds."""
    if not any(plan.in_step for _, plan in stream.plans):
        return 1.0
    steps = max(sum(event.steps for event in stream.of(Progress) if event.rank == rank) for rank in stream.ready)
    return max(len(np.unique(stream.slices.seq[stream.slices.kind == "exchange"])) / steps, 1.0)


def comings(stream: RunRecords, histories: Histories) -> tuple[dict[tuple[int, int], float], float]:
    """Return (rank, life) -> seconds until it was there; and those until a loss was noticed, the mean."""
    starts, begun, notices = dict[tuple[int, int], float](), dict[int, tuple[int, float]](), list[float]()
    for at, move in stream.moves:
        match move:
            case Drop():
                ends = sorted(stream.slices.stop[stream.slices.places(move.rank)].tolist())
                notices.append(at - histories.last_sign(move.rank, ends, at, at))
            case Restart():
                begun[move.rank] = move.life, at
            case Joining():
                life, since = begun[move.rank]
                starts[move.rank, life] = at - since
    return starts, fmean(notices)


def table(rows: list[Compared]) -> str:
    """Return the histories as Markdown: the figures of both, and the largest difference of a part."""
    headers = ["mode", "faults", "goodput", "virtual", "ETTR", "virtual"]
    headers += ["largest difference of a part, points", "load"]
    cells = []
    for row in rows:
        part, points = largest(row)
        figures = (row.real.goodput, row.virtual.goodput, row.real.ettr, row.virtual.ettr)
        shares = (f"{100 * figure:.1f} %" for figure in figures)
        cells.append([row.mode, row.faults, *shares, f"{part} {points:+.1f}", f"{row.load:.0f}"])
    return frame.table(cells, headers)


def largest(row: Compared) -> tuple[str, float]:
    """Return the part in which the simulation differs most, and by how many points."""
    apart = {part: 100 * (getattr(row.virtual.parts, part) - getattr(row.real.parts, part)) for part in PARTS}
    part = max(apart, key=lambda name: abs(apart[name]))
    return part, apart[part]


def main() -> int:
    """Run the command: 1 if goodput or ETTR of a history differ by more than three points."""
    parser = frame.options(__doc__, "write the table into reports/goodput")
    parser.add_argument("--runs", type=Path, help="compare the runs there, train nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="goodput-") as folder:
        for number, (mode, faults) in enumerate(HISTORIES if asked.runs is None else ()):
            words = (f"mode={mode}", f"cluster.faults=[{faults}]", f"output={folder}/{number}")
            frame.bench(*WORDS, *words, timeout=600)
        rows = [compared(run) for run in find_runs(asked.runs or Path(folder))[0]]
    text = table(rows)
    print(text)
    if asked.write:
        frame.write_report("goodput/real.md", HEAD, text)
    apart = [abs(row.real.goodput - row.virtual.goodput) for row in rows]
    apart += [abs(row.real.ettr - row.virtual.ettr) for row in rows]
    return int(100 * max(apart) > POINTS)


if __name__ == "__main__":
    frame.run_command(main)
