"""A full run over a wide-area link, real and predicted, side by side.

    python -m benchmarks.scale                # half an hour; what is trained is not trained again
    python -m benchmarks.scale --modes nccl_cadence,cpu_cadence --seeds 2
    python -m benchmarks.scale --write        # and into reports/scale

Calibrated on two ranks without links, then four emulated slow ranks over `wan_1g_30ms`: trained with the link emulated, and
predicted by `bench predict`. Both write run folders, which are read by the same code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from bench.results.runfolder import Run, find_runs
from bench.results.schema import Metrics
from benchmarks.frame import bench, options, run_command, write_report
from benchmarks.prediction import NONE, SPEEDS, STEP_S, trained

MODEL, RANKS, LINK = "mlp", 4, "wan_1g_30ms"
MODES = ("nccl_sync", "nccl_cadence", "nccl_async", "cpu_sync", "cpu_cadence", "cpu_async")
FIGURES: dict[str, Callable[[Metrics], float]] = {
    "samples/s": lambda m: m.throughput.samples_per_s or 0.0,
    "training, s": lambda m: m.time_s.train,
    "averages": lambda m: m.sync.count,
    "an average, ms (median)": lambda m: m.sync.ms_p50 or 0.0,
    "ranks computing, % of their time": lambda m: 100 * fmean(rank.compute for rank in m.breakdown),
    "ranks communicating, %": lambda m: 100 * fmean(rank.comm for rank in m.breakdown),
    "ranks waiting, %": lambda m: 100 * fmean(rank.wait for rank in m.breakdown),
}
"""What is shown of a run."""


def predicted(tree: Path, source: Run, mode: str) -> Run:
    """Return the prediction of a cell, as its run folder has it."""
    place = tree / f"{mode}-{RANKS}-{LINK}-predicted"
    speeds = ",".join(map(str, SPEEDS))
    bench("predict", source.path, "--ranks", RANKS, "--links", LINK, "--output", place, "--speeds", speeds)
    (run,) = find_runs(place)[0]
    assert run.metrics.source == "predicted"
    return run


def rows(tree: Path, mode: str, seeds: tuple[int, ...]) -> list[str]:
    """Return the table's rows of a mode: each figure, predicted and as it was."""
    (source,) = trained(tree, MODEL, mode, 2, NONE, seeds[:1])
    real = [run.metrics for run in trained(tree, MODEL, mode, RANKS, LINK, seeds)]
    guess = predicted(tree, source, mode).metrics
    lines = []
    for name, figure in FIGURES.items():
        each = [figure(metrics) for metrics in real]
        off = f"{100 * (figure(guess) / fmean(each) - 1):+.1f} %" if name == "samples/s" else ""
        known = f"{fmean(each):,.1f} ({min(each):,.1f} to {max(each):,.1f})"
        lines.append(f"| {mode} | {name} | {figure(guess):,.1f} | {known} | {off} |")
    return lines


def main() -> int:
    """Run the command; its exit code."""
    parser = options(__doc__, "write the table into reports/scale")
    parser.add_argument("--tree", type=Path, default=Path("runs") / "scale", help="where runs are, or go")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="real runs of each mode")
    asked = parser.parse_args()
    lines = ["| mode | figure | predicted | real, mean (range) | error |", "|---|---|---|---|---|"]
    for mode in asked.modes.split(","):
        found = rows(asked.tree, mode, tuple(range(asked.seeds)))
        print("\n".join(found), flush=True)
        lines += found
    if asked.write:
        about = (
            f"{MODEL}, {RANKS} ranks of speeds {SPEEDS} in turn, {asked.seeds} real runs a mode, in which the link is "
            f"emulated, steps of {1e3 * STEP_S[MODEL]:g} ms at speed 1. Predicted from one run of two ranks without "
            "links. Real ranks also wait until all are ready, some 0.5 s, which no prediction contains."
        )
        title = f"# Over {LINK}, real and predicted"
        write_report("scale/README.md", title, "    python -m benchmarks.scale --write", about, "\n".join(lines))
    return 0


if __name__ == "__main__":
    run_command(main)
