"""Measures the cost of a live dashboard for a run: `python -m benchmarks.dashboard`.

The dashboard runs in a process of its own, with one connected page that watches one run. Its processor seconds are
measured: they hardly depend on the load of the machine, and are all that it takes from a run, which never waits for
it.

- *fed*: a recorded run is written anew at a chosen pace; processor time of a second of watching, and of an event.
- *trained* (`--pairs N`): two ranks train, in turns with and without the dashboard; its processor time over the run's, and
  the median of the ratios of speed of neighbouring runs, with its 95 % interval. On a busy machine that is mostly noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

from bench.dashboard.process import listen
from bench.results.runfolder import CONFIG, EVENTS, find_runs
from bench.results.writer import RunWriter
from benchmarks import frame
from tests.bench.dashboard.dashboards import messages
from tests.bench.streams import lines, make_records, make_spec

PACES = (0, 100, 1000, 10_000)
"""Events a second, one in twelve of which is shown; the others are skipped."""
WATCHED_S = 15.0
SPEC = make_spec(world_size=2, epochs=40)
KEY = f"{SPEC.model}/{SPEC.mode}/{SPEC.run_id}"


@contextmanager
def dashboard(root: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Its process and port."""
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        words = [sys.executable, "-m", "bench", "dashboard", str(root), "--socket", str(listening.fileno())]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(listening.fileno(),))
    try:
        yield psutil.Process(process.pid), port
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)


@contextmanager
def page(port: int, key: str | None = None) -> Iterator[None]:
    """Somebody looks: at one run, or at the list and every run that appears in it, as the page does."""
    ready = threading.Event()

    def read() -> None:
        with suppress(OSError):
            for message in messages(port, f"?run={key}" if key else ""):
                ready.set()
                if key is None and message.kind == "row":
                    read_run(message.body["key"])
                    return

    def read_run(chosen: str) -> None:
        with suppress(OSError):
            for _ in messages(port, f"?run={chosen}"):
                pass

    threading.Thread(target=read, daemon=True).start()
    assert ready.wait(60)
    yield


def spent(process: psutil.Process) -> float:
    """Processor seconds."""
    times = process.cpu_times()
    return times.user + times.system


def fed(root: Path, pace: int) -> dict[str, float]:
    """Processor time of the dashboard while events come at that pace."""
    written = list(lines(make_records(SPEC, windows=60)))
    writer = RunWriter(root, SPEC.model, SPEC.mode, SPEC.run_id)
    (writer.path / CONFIG).write_text(json.dumps({"model": SPEC.model, "world_size": 2, "train": {"epochs": 40}}))
    sent = 0
    with (writer.path / EVENTS).open("ab", buffering=0) as file, dashboard(root) as (process, port), page(port, KEY):
        time.sleep(2.0)
        began, before = time.monotonic(), spent(process)
        while (passed := time.monotonic() - began) < WATCHED_S and sent < len(written):
            due = min(int(passed * pace), len(written))
            file.write(b"".join(line + b"\n" for line in written[sent:due]))
            sent = due
            time.sleep(0.02)
        used, seconds = spent(process) - before, time.monotonic() - began
    writer.discard()
    return {"seconds": seconds, "events": sent, "cpu_s": used}


def run(output: Path, epochs: int, seed: int) -> tuple[float, float]:
    """Samples per second of training and seconds of a run of two ranks."""
    words = ["model=mlp", "mode=nccl_cadence", f"train.epochs={epochs}", f"seed={seed}", f"output={output}"]
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "bench", *words, "report=false", "validate=false"], check=True, capture_output=True
    )
    ((found,), _) = find_runs(output)
    return found.metrics.throughput.samples_per_s or np.nan, time.monotonic() - began


def pair(turn: int, epochs: int) -> tuple[float, float]:
    """Speed with a dashboard over that without, and the share of a core that it took."""
    speeds, share = {}, 0.0
    for way in ("with", "without") if turn % 2 else ("without", "with"):
        with tempfile.TemporaryDirectory() as folder:
            if way == "without":
                speeds[way], _ = run(Path(folder), epochs, turn)
                continue
            with dashboard(Path(folder)) as (process, port), page(port):
                before = spent(process)
                speeds[way], seconds = run(Path(folder), epochs, turn)
                share = (spent(process) - before) / seconds
    return speeds["with"] / speeds["without"], share


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60)
    asked = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for pace in PACES:
        with tempfile.TemporaryDirectory() as folder:
            said = fed(Path(folder), pace)
        each = f"{1e6 * said['cpu_s'] / said['events']:6.0f} us an event" if said["events"] else ""
        share = said["cpu_s"] / said["seconds"]
        print(
            f"fed {said['events'] / said['seconds']:7.0f} events/s: {100 * share:5.1f} % of a core  {each}", flush=True
        )
    if asked.pairs:
        ratios, shares = np.array([pair(turn, asked.epochs) for turn in range(asked.pairs)]).T
        draws = np.random.default_rng(0).choice(ratios, (4000, len(ratios)))
        low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
        print(
            f"trained: {100 * np.median(shares):.1f} % of a core ({100 * shares.min():.1f} to {100 * shares.max():.1f})"
        )
        print(f"speed with over without: {np.median(ratios):.3f} [{low:.3f}, {high:.3f}], {len(ratios)} pairs")


if __name__ == "__main__":
    frame.run_command(main)
