"""Trains runs without a defect, of settings drawn at random, and judges them: any verdict of failure is a false alarm.

    python -m benchmarks.clean_kinds [--count N] [--first K] [--jobs N]

Run K has settings of its own: model, mode, number of ranks, batch, precision, accumulation, clipping, augmentation by the
recipe, averaging, links, speeds, faults that a run survives, checkpoints. Some are killed behind a checkpoint and gone on
with. A configuration that the command refuses says why. Runs are kept under .benchmarks/kinds, and so it goes on after an
interruption. `make clean-runs` has many runs of a few settings, this has a few of many.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.results.runfolder import find_runs
from benchmarks.bugs.__main__ import failed, is_of_the_run

ROOT = Path(__file__).parent.parent
RUNS = ROOT / ".benchmarks" / "kinds"
NONE = RUNS / "no-baselines"
LIMIT_S = 300.0
MODELS = ("mlp",) * 4 + ("lenet",) * 3 + ("logistic", "conv_ae", "char_rnn", "gpt_nano", "resnet_graph")
LONG = ("char_rnn", "gpt_nano", "resnet_graph")
WINDOWED = tuple(f"{backend}_{policy}" for backend in ("nccl", "cpu") for policy in ("cadence", "async", "qsr"))
INSIDE = ("nccl_sync", "cpu_sync", "zero1", "zero2", "zero3")
PEERS = ("torch_ddp", "torch_fsdp", "torch_zero1", "torch_local_sgd")
GRAPHS = ("graph_sync", "graph_cadence")
MODES = (*WINDOWED * 2, *INSIDE * 2, *PEERS, *GRAPHS, "solo", "virtual_nccl_cadence", "virtual_cpu_async")


def drawn(number: int) -> tuple[list[str], bool]:
    """Return the settings of run `number`, and whether it is killed and gone on with."""
    draw = random.Random(number)
    model, mode = draw.choice(MODELS), draw.choice(MODES)
    ranks = 1 if mode == "solo" else draw.choice((1, 2, 2, 2, 3, 4))
    epochs = draw.choice((1, 2, 3, 4))
    words = [f"model={model}", f"mode={mode}", f"world_size={ranks}", f"seed={number}", f"train.epochs={epochs}"]
    words.append(f"data.samples={draw.choice((600, 1000, 1500) if model in LONG else (1501, 3000, 6000))}")
    for chance, choices in (
        (
            0.4,
            [
                *(f"train.batch_size={size}" for size in (7, 16, 50, 128)),
                *(f"train.global_batch_size={ranks * n}" for n in (8, 24)),
            ],
        ),
        (0.2, ["train.accumulate=2", "train.accumulate=3"]),
        (0.2, ["train.precision=bf16"]),
        (0.2, ["train.max_grad_norm=1.0", "train.max_grad_norm=0.1"]),
        (0.2, ["loader.kind=streaming", "loader.kind=resident"]),
        (0.2, ["train.lr_scale_ratio=0.5"]),
        (0.3, ["checkpoint.every=1", "checkpoint.every=0"] if mode in (*WINDOWED, *INSIDE, "solo") else [words[0]]),
    ):
        if draw.random() < chance:
            words.append(draw.choice(choices))
    if ranks > 1 and mode in WINDOWED + INSIDE:
        words += _of_several(draw, mode, ranks)
    return words, mode in (*WINDOWED, *INSIDE) and draw.random() < 0.2


def _of_several(draw: random.Random, mode: str, ranks: int) -> Iterator[str]:
    """Iterate over settings of the cluster and the averages."""
    if draw.random() < 0.4:
        yield f"cluster.speeds=[{','.join(str(draw.choice((1.0, 0.7, 0.5, 0.3))) for _ in range(ranks))}]"
    if draw.random() < 0.15:
        yield draw.choice(("cluster.links=5ms/1gbit/jitter1ms", "cluster.links=wan_1g_30ms"))
    if mode in WINDOWED and draw.random() < 0.5:
        yield draw.choice(
            (
                "averaging.gamma=0",
                "averaging.elastic=0.5",
                "averaging.outer=momentum",
                "averaging.outer=nesterov",
                "averaging.optimizer_state=true",
                "averaging.optimizer_reset=true",
            )
        )
    if mode.startswith("nccl") and mode in WINDOWED and draw.random() < 0.3:
        yield draw.choice(("averaging.wire=bfloat16", "averaging.wire=float32"))
    if not mode.startswith("zero") and draw.random() < 0.3:
        kind = draw.choice(("crash", "raise", "slow", "input*3", "lose"))
        yield f"cluster.faults=[{draw.randrange(ranks)}@{draw.randrange(3, 12)}:{kind}]"
        if kind in ("crash", "raise") and draw.random() < 0.5:
            yield "cluster.restart=2"


def trained(number: int) -> tuple[Path, str]:
    """Train a run if it is not there; return its folder, and what the command said where it ended with an error."""
    words, killed = drawn(number)
    folder = RUNS / str(number)
    if (folder / "done").is_file():
        return folder, (folder / "done").read_text()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "bench", *words, f"output={folder}", "report=false", "validate=false"]
    code = _run([*command, *(["checkpoint.spacing_s=0"] if killed else [])], folder, killed)
    if killed and code < 0:
        for checkpoint in list(folder.glob("*/*/*/checkpoints"))[:1]:
            code = _run([sys.executable, "-m", "bench", f"resume={checkpoint.parent}"], folder, False)
    said = "" if code == 0 else f"exit code {code}: {_last_line(folder)}"
    (folder / "done").write_text(said)
    return folder, said


def _run(command: Sequence[str], folder: Path, killed: bool) -> int:
    """Run a command; `killed`: until it has a checkpoint. Return its exit code, negative for a signal."""
    began = time.monotonic()
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        while process.poll() is None:
            there = killed and any(folder.glob("*/*/*/checkpoints/*"))
            if there or time.monotonic() - began > LIMIT_S:
                time.sleep(0.3 if there else 0.0)
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.05)
    return process.wait()


def _last_line(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "nothing was said"


def judged(number: int) -> str:
    """Return a line of what came of run `number`."""
    words, killed = drawn(number)
    began = time.monotonic()
    folder, said = trained(number)
    alarms = [
        f"{verdict.name} {verdict.check}: {verdict.line}" for verdict in failed(folder, NONE) if is_of_the_run(verdict)
    ]
    outcome = "\n    ".join(f"ALARM {alarm}" for alarm in alarms) or said or "no alarm"
    if not said and not find_runs(folder)[0]:
        outcome = "ALARM no run came of it"
    told = f"{' '.join(words)}{' (killed and gone on with)' if killed else ''}"
    return f"{number}: {told}: {time.monotonic() - began:.0f} s\n    {outcome}"


def main() -> int:
    """Return the exit code: 1 if there was an alarm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=40, help="runs")
    parser.add_argument("--first", type=int, default=0, help="number of the first, which is its seed too")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    words = parser.parse_args()
    NONE.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(words.jobs) as pool:
        lines = []
        for line in pool.map(judged, range(words.first, words.first + words.count)):
            print(line, flush=True)
            lines.append(line)
    bad = sum("ALARM" in line for line in lines)
    refused = sum("exit code" in line and "ALARM" not in line for line in lines)
    print(f"\n{len(lines)} settings: {bad} with an alarm, {refused} ended with an error of their own")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
