"""Plays the same cells of the fault matrix over torchft's collectives and over ours, in turn, in processes.

    pip install -e '.[torchft]' && python -m benchmarks.torchft_matrix [--write]    # 25 minutes

Three ranks, each lost one restarted. What was played with the present sources is kept under .benchmarks, so this can be
interrupted. `--write` puts the table into reports/faults/torchft.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from bench.faults.meaning import KINDS, PHASES, PROCESSES, FaultCell, FaultOutcome, meaningless
from bench.faults.modes import MODES
from bench.faults.outcome import FaultResult
from bench.faults.played import play_missing
from bench.faults.processes import play
from bench.faults.store import ResultStore
from bench.faults.table import COSTS, costs, deviations, markdown
from benchmarks import frame
from ddp.core.settings.averaging import Averaging

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / ".benchmarks" / "torchft"
SIZE = 3
METHODS = {
    "DDP": ("sync", Averaging()),
    "LocalSGD": ("cadence", Averaging()),
    "DiLoCo": ("cadence", Averaging(outer="nesterov")),
}
"""torchft's method -> (policy, averaging) of the mode that does the same."""
BACKENDS = ("torchft", "nccl")
BLOWS = {
    "crash": ("last", "two"),
    "stop": ("last",),
    "raise": ("last",),
    "pause": ("last",),
    "lost message": ("last",),
}
"""Kind of fault -> ranks that are hit, in every phase after the start."""
AFTER_START = ("step", "collective", *(phase for phase in PHASES if phase not in ("start", "step", "collective")))
"""Phases, in the order in which they are played."""
HEAD = """# torchft beside ours

    pip install -e '.[torchft]' && python -m benchmarks.torchft_matrix --write

The same cells of the [fault matrix](README.md) (its terms hold here), in turn with torchft's collectives
(`torchft_*`) and with ours (`nccl_*`): three processes, of which each lost one is restarted. DiLoCo is
`averaging.outer=nesterov`. Times and samples are those of runs that did not end: median / worst. Coordinator, data and
recovery are ours in both; [torchft alone](torchft-alone.md)."""


def blows(policy: str, backend: str) -> Iterator[FaultCell]:
    """Yield the cells of a mode."""
    for phase in AFTER_START:
        for kind in KINDS:
            for ranks in BLOWS.get(kind, ()):
                cell = FaultCell(kind, phase, ranks, f"{backend}_{policy}")
                if not meaningless(cell, PROCESSES):
                    yield cell


def played(method: str, most: int) -> list[FaultResult]:
    """Return the results of a method's cells over both backends; play those that are missing, of the first `most`."""
    policy, averaging = METHODS[method]
    store = ResultStore(RUNS / method)
    pairs = islice(zip(*(blows(policy, backend) for backend in BACKENDS), strict=True), most)
    wanted = [cell for pair in pairs for cell in pair]
    play_missing([(cell, SIZE) for cell in wanted], PROCESSES, store, partial(play, averaging=averaging))
    return [store.found[str(cell), PROCESSES, SIZE] for cell in wanted]


def lines(method: str, results: list[FaultResult]) -> list[str]:
    """Return the table of a method, and what is not as documented."""
    rows = []
    for kind in BLOWS:
        for mode in dict.fromkeys(result.cell.mode for result in results):
            of = [result for result in results if (result.cell.kind, result.cell.mode) == (kind, mode)]
            if not of:
                continue
            went_on = [result for result in of if result.outcome is not FaultOutcome.ENDED]
            ended = str(len(of) - len(went_on))
            rows.append((kind, mode, ended, *(costs(went_on) if went_on else ("0", *"-" * (len(COSTS) - 1)))))
    whole = 2 * sum(1 for _ in blows(METHODS[method][0], BACKENDS[0]))
    table = markdown(("kind", "mode", "ended", *COSTS), rows)
    return [f"## {method}", "", f"{len(results)} of {whole} cells played.", "", *table, "", *deviations(results), ""]


def main() -> int:
    """Run the command: 1 if a cell is not as documented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into reports/faults")
    parser.add_argument("--most", type=int, default=1000, help="pairs of cells of a method (default: all)")
    options = parser.parse_args()
    if f"{BACKENDS[0]}_sync" not in MODES:
        parser.error("torchft is not installed: pip install -e '.[torchft]'")
    results = {method: played(method, options.most) for method in METHODS}
    text = [line for method, each in results.items() for line in lines(method, each)]
    print("\n".join(text))
    if options.write:
        frame.write_report("faults/torchft.md", HEAD, frame.machine_load(), "\n".join(text).rstrip())
    return int(not all(result.good for each in results.values() for result in each))


if __name__ == "__main__":
    frame.run_command(main)
