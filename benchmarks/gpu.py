"""Measures the speed and memory of the ways of training on one GPU, and of two ranks that share it, audited. Needs a
CUDA device.

    python -m benchmarks.gpu [--rounds N] [--seconds S] [--out FOLDER] [--write]

Every round trains all cells once, with another seed, so that other load on the machine affects all cells. `--seconds`:
no sweep begins after this time. `--write`: write reports/gpu from the existing runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from bench.results.audit_file import read
from bench.results.runfolder import Run, find_runs
from bench.results.schema import Metrics
from benchmarks import frame

SWEEPS = (
    (
        "model=resnet_graph",
        "mode=solo,nccl_sync,torch_ddp,nccl_cadence,zero1,zero3,torch_fsdp,graph_sync",
        "train.precision=fp32,bf16",
        "train.batch_size=256",
        "train.steps=200",
    ),
    (
        "model=gpt_nano",
        "mode=solo,nccl_sync,torch_ddp",
        "train.precision=fp32,bf16",
        "train.batch_size=256",
        "train.steps=100",
    ),
    ("model=vit", "mode=nccl_sync,torch_ddp", "train.precision=fp32,bf16", "train.batch_size=256", "train.steps=100"),
    (
        "model=resnet_graph",
        "mode=solo",
        "train.compile=true",
        "train.precision=fp32,bf16",
        "train.batch_size=256",
        "train.steps=200",
    ),
)
"""What is trained, on one rank, which has the GPU."""
COMMON = ("cluster.device=cuda", "report=false", "validate=false")
SHARED = (
    "model=lenet",
    "mode=nccl_sync,nccl_cadence,nccl_async,cpu_sync,cpu_cadence,cpu_async,zero1,zero2,zero3,"
    "torch_ddp,torch_zero1,torch_local_sgd,graph_sync,graph_cadence",
    "world_size=2",
    "train.steps=100",
)
"""What two ranks train that share the GPU."""
PEER = "torch_ddp"
PARTS = ("alone", "shared")
HEAD = """# One GPU

    make gpu
"""
ALONE = """## One rank

With one rank every mode runs the program of `solo`, without collectives: modes differ by chance. *ms*: median step
of a run. *x DDP*: the step of `torch_ddp` divided by it, for the same model, precision and round; of several rounds
the range. *computing*: share of the rank's time. The parts of a step are timed by waiting for the device, so a loop
without timing is faster. Most of a step here is launching kernels: work of the processor, which differs by a quarter
from run to run."""
TOGETHER = """## Two ranks that share it

Collectives go over gloo, as NCCL refuses two ranks on one GPU. Each run is audited: another process repeats steps,
averages and evaluations in plain PyTorch. *Equal*: repetitions that agree. `torch_fsdp` is refused: PyTorch's ends
its process here."""


def train(rounds: int, seconds: float, out: Path) -> None:
    """Train all cells, round by round."""
    began = time.monotonic()
    for seed in range(rounds):
        for sweep in SWEEPS:
            if time.monotonic() - began < seconds:
                words = ("world_size=1", "audit=off", f"seed={seed}", f"output={out / 'alone'}")
                frame.bench("-m", *COMMON, *sweep, *words, stdout=None)
    frame.bench("-m", *COMMON, *SHARED, f"output={out / 'shared'}", stdout=None)


def audits(runs: Iterable[Run]) -> str:
    """Return what became of the audits of runs of several ranks."""
    rows = []
    for run in sorted(runs, key=lambda run: (run.metrics.model, run.metrics.mode)):
        items = read(run.path).items
        equal = sum(item.outcome == "equal" for item in items)
        share = max((item.largest for item in items if item.largest is not None), default=0.0)
        rows.append(
            [run.metrics.model, run.metrics.mode, run.metrics.transport, f"{equal} of {len(items)}", f"{share:.1g}"]
        )
    head = ["model", "mode", "transport", "equal", "largest difference, of what is allowed"]
    return frame.table(rows, head)


def lead(runs: Sequence[Run]) -> str:
    """Return what both tables come to; `runs`: those of several ranks."""
    equal = sum(all(item.outcome == "equal" for item in read(run.path).items) for run in runs)
    return (
        f"These runs do not show which mode is faster. Two ranks that share a GPU match plain PyTorch in {equal} of "
        f"{len(runs)} modes."
    )


def table(runs: Iterable[Run]) -> str:
    """Return the figures of all cells, medians over rounds."""
    cells: dict[tuple[str, str, bool, str], dict[int, Metrics]] = {}
    for run in runs:
        train = run.config["train"]
        what = run.metrics.model, str(train.get("precision") or "fp32"), bool(train.get("compile"))
        cells.setdefault((*what, run.metrics.mode), {})[run.metrics.seed] = run.metrics
    rows = []
    for (model, precision, compiled, mode), each in sorted(cells.items()):
        peers = cells.get((model, precision, False, PEER), {})
        ratios = sorted(step_ms(peers[seed]) / step_ms(each[seed]) for seed in each.keys() & peers.keys())
        rows.append(
            [
                model,
                precision,
                mode + (", compiled" if compiled else ""),
                len(each),
                f"{median(map(step_ms, each.values())):.1f}",
                "-"
                if mode == PEER
                else " to ".join(dict.fromkeys(f"{ends:.2f}" for ends in (ratios[:1] + ratios[-1:]))) or "-",
                f"{median(one.memory.peak_device_bytes[0] or 0 for one in each.values()) / 2**20:,.0f}",
                f"{median(one.breakdown[0].compute for one in each.values()):.0%}",
            ]
        )
    head = ["model", "precision", "mode", "runs", "ms", "x DDP", "MiB", "computing"]
    return frame.table(rows, head)


def step_ms(metrics: Metrics) -> float:
    """Return the time of a step of rank 0, the median, milliseconds."""
    assert metrics.timeline is not None
    assert metrics.timeline.steps[0] is not None
    return float(metrics.timeline.steps[0].p50_ms or 0.0)


def main() -> int:
    """Train, and print or write the table."""
    parser = frame.options(__doc__, "write reports/gpu, and train nothing")
    parser.add_argument("--rounds", type=int, default=3, help="how often each cell is trained")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no sweep begins after so long")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of the runs")
    arguments = parser.parse_args()
    if not arguments.write:
        train(arguments.rounds, arguments.seconds, arguments.out)
    runs, shared = ([run for run in find_runs(arguments.out / part)[0] if run.metrics.status == "ok"] for part in PARTS)
    machine = {f"{', '.join(map(str, run.metrics.env['gpus']))}, torch {run.metrics.env['torch']}" for run in runs}  # type: ignore[arg-type]
    where = f"On {'; '.join(sorted(machine))}."
    parts = (HEAD, lead(shared), where, ALONE, table(runs), TOGETHER, audits(shared))
    print(*parts, sep="\n\n")
    if arguments.write:
        frame.write_report("gpu/README.md", *parts)
    return 0


if __name__ == "__main__":
    frame.run_command(main)
