"""Compares recovery in torchft, in its engines here (`mode=torchft_*`) and in ours: one of three ranks of `mlp` is killed
and started again at once.

    pip install -e '.[torchft]' && python -m benchmarks.torchft_peer [--rounds 3] [--write]    # some minutes

Rounds are interleaved. In torchft every replica group is one process over gloo; the lighthouse's heartbeat is 50 ms. A
restarted torchft process imports everything anew, while ours is forked from a warm process: the table shows this part
separately. `--write` writes the table into reports/faults/torchft-alone.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from urllib.parse import urlparse

from tabulate import tabulate

from bench.base.number_format import plural
from bench.results.runfolder import EVENTS, find_runs
from benchmarks import frame
from ddp.core.messages.events import Lost, Progress
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.codec import decode

HEAD = """# torchft alone, in our engine, and ours

    pip install -e '.[torchft]' && python -m benchmarks.torchft_peer --write

One of three ranks of `mlp` is killed and started again at once. *torchft*: its own loop, data and lighthouse; its new
process imports everything, ours is forked from a warm one. *torchft_\\**: its collectives in our engine, with our
coordinator, data and recovery. *nccl_\\**: ours. Median (worst)."""
REPLICAS, VICTIM = 3, 1
PAIRS = {
    "ddp": ("mode=nccl_sync",),
    "local_sgd": ("mode=nccl_cadence", "policy.anchor=20", "policy.max_anchor=20"),
    "diloco": ("mode=nccl_cadence", "policy.anchor=20", "policy.max_anchor=20", "averaging.outer=nesterov"),
}
"""torchft's method -> the mode of ours that does the same."""
AT = {"ddp": 400, "local_sgd": 20, "diloco": 20}
"""Step, or average, of torchft at which the victim is killed."""
LIMIT_S = 120
BATCH = 16


@dataclass(frozen=True)
class Blow:
    """What one kill cost, seconds."""

    stall: float
    """Longest stretch without a step, or a report, of a survivor between the kill and full strength."""
    started: float
    """From the kill until the new process was there."""
    full: float
    """From the kill until all ranks trained together."""
    lost: int
    """Samples of the order that nobody trained, or that were trained and thrown away."""
    crashed: int = 0
    """Survivors that died of the kill."""


def theirs(method: str, folder: Path) -> Blow:
    """Kill a replica of torchft's. Raises TimeoutError if it does not come back."""
    os.environ.setdefault("RUST_LOG", "error")  # read when it is loaded
    from torchft.coordination import LighthouseServer

    beat = {"join_timeout_ms": 100, "quorum_tick_ms": 50, "heartbeat_timeout_ms": 1000}
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, **beat)
    address = f"http://127.0.0.1:{urlparse(server.address()).port}"
    script = Path(__file__).with_name("torchft_rank.py")

    def start(replica: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), method, str(replica), str(REPLICAS), address, "1000000"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command.append(str(folder / f"{replica}.jsonl"))
        with (folder / f"{replica}.log").open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    processes = [start(replica) for replica in range(REPLICAS)]
    crashed = 0

    def supervise() -> None:
        nonlocal crashed
        for replica, process in enumerate(processes):
            if process.poll() is not None:  # as torchrun does
                crashed += replica != VICTIM
                processes[replica] = start(replica)

    try:
        _await(lambda: _last(folder, VICTIM, AT[method]), supervise)
        killed = time.monotonic()
        processes[VICTIM].kill()
        processes[VICTIM].wait()
        _await(lambda: bool(_together(folder, killed)), supervise)
        time.sleep(0.5)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.shutdown()
    return _measured(folder, killed, crashed)


def _together(folder: Path, killed: float) -> list[float]:
    """Return when the new process trained with all others, if it did."""
    notes = _notes(folder, VICTIM)
    began = max(at for at, event, *_ in notes if event == "began")
    return [at for at, event, _, who, _ in notes if at > began > killed and event == "step" and who == REPLICAS]


def _measured(folder: Path, killed: float, crashed: int) -> Blow:
    full = _together(folder, killed)[0]
    started = next(at for at, event, *_ in _notes(folder, VICTIM) if at > killed and event == "ready")
    survivors = [[note for note in _notes(folder, replica) if note[1] in ("step", "undone")] for replica in (0, 2)]
    stall = standstill([[note[0] for note in own] for own in survivors], killed, full)
    before = max(step for own in survivors for at, _, step, _, _ in own if at <= killed)
    if crashed >= REPLICAS - 1:  # nobody was left who knew
        return Blow(stall, started - killed, full - killed, before * REPLICAS * BATCH, crashed)
    away = sum(1 for at, event, _, who, _ in survivors[0] if killed < at < full and event == "step" and who < REPLICAS)
    undone = sum(1 for own in survivors for at, event, *_ in own if at > killed and event == "undone")
    return Blow(stall, started - killed, full - killed, (away + undone) * BATCH, crashed)


def standstill(signs: Iterable[Sequence[float]], killed: float, full: float) -> float:
    """Return the longest stretch between two signs of a survivor that was in part between the kill and full strength.
    `signs`: their times, of each survivor."""
    return max(b - a for own in signs for a, b in pairwise(own) if a < full and b > killed)


def _notes(folder: Path, replica: int) -> list[tuple[float, str, int, int, int]]:
    path = folder / f"{replica}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]


def _last(folder: Path, replica: int, step: int) -> bool:
    notes = _notes(folder, replica)
    return bool(notes) and notes[-1][2] >= step and notes[-1][3] == REPLICAS


def _await(happened: Callable[[], bool], supervise: Callable[[], None]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        supervise()
        if time.monotonic() > limit:
            raise TimeoutError(f"torchft did not get there within {LIMIT_S} s")
        time.sleep(0.05)


def ours(settings: Sequence[str], folder: Path, seed: int) -> Blow:
    """Kill a rank here. Raises StopIteration if it does not come back, CalledProcessError."""
    words = ["model=mlp", f"world_size={REPLICAS}", "train.epochs=12", "cluster.restart=always", f"seed={seed}"]
    words += [f"cluster.faults=[{VICTIM}@1500:crash]", "report=false", "validate=false", "audit=false", "--quiet"]
    command = [sys.executable, "-m", "bench", *settings, *words, f"output={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    (run,), _ = find_runs(folder)
    records = [decode(line) for line in (run.path / EVENTS).read_bytes().splitlines()]
    noticed = next(record.at for record in records if isinstance(record, Lost))
    reports = [record for record in records if isinstance(record, Progress)]
    killed = max(r.at for r in reports if r.rank == VICTIM and r.at <= noticed)  # or up to 20 ms later
    there = next(record.at for record in records if isinstance(record, Joining))
    joined = next(record.at for record in records if isinstance(record, Joined))
    full = min(r.at for r in reports if r.rank == VICTIM and r.at > joined)
    stall = standstill([[r.at for r in reports if r.rank == rank] for rank in (0, 2)], killed, full)
    ledger = run.metrics.ledger
    assert ledger is not None
    return Blow(stall, there - killed, full - killed, 0 if ledger.exactly_once else -1)


def contestants(seed: int) -> Iterator[tuple[str, Callable[[Path], Blow]]]:
    """Yield (name, how to kill one of its ranks): for each method torchft itself, its engine here, and ours."""
    for method, (mode, *words) in PAIRS.items():
        yield f"torchft {method}", partial(theirs, method)
        outer = ", outer=nesterov" if method == "diloco" else ""
        for backend in ("torchft", "nccl"):
            name = mode.replace("nccl", backend)
            yield name.removeprefix("mode=") + outer, partial(ours, (name, *words), seed=seed)


def row(name: str, blows: Sequence[Blow]) -> dict[str, str]:
    """Return medians, with the worst behind."""
    cells = {"": name}
    for title, values in (
        ("others stand still, s", [blow.stall for blow in blows]),
        ("process is there, s", [blow.started for blow in blows]),
        ("full strength, s", [blow.full for blow in blows]),
        ("without the start, s", [blow.full - blow.started for blow in blows]),
    ):
        cells[title] = f"{median(values):.2f} ({max(values):.2f})"
    crashed = sum(blow.crashed for blow in blows)
    return cells | {"survivors that died": str(crashed), "samples lost": f"{median(blow.lost for blow in blows):,.0f}"}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    blows: dict[str, list[Blow]] = {}
    for turn in range(options.rounds):
        for who, play in contestants(turn):
            with tempfile.TemporaryDirectory(prefix="peer-") as folder:
                blow = play(Path(folder))
            blows.setdefault(who, []).append(blow)
            print(who, blow, flush=True)
    text = tabulate([row(name, each) for name, each in blows.items()], headers="keys", tablefmt="pipe")
    print(text)
    if options.write:
        load = f"{plural(options.rounds, 'kill')} each. {frame.machine_load()}"
        frame.write_report("faults/torchft-alone.md", HEAD, load, text)


if __name__ == "__main__":
    frame.run_command(main)
