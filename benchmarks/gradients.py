"""Compares the steps of this checkout with those of another one, in turns: the cost or gain of a change in the
gradient path.

    git worktree add ../before REVISION
    python -m benchmarks.gradients ../before --model mlp --recipe published --data data --pairs 60

Each checkout has two ranks in processes of its own, which build a replica and its backend as the engine does. Blocks of
steps take turns, so that other programs on the machine slow both; `alone` is the same step without the other rank.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ddp.process.forkserver import ENVIRONMENT

BLOCK_S = 0.15
"""How long a block of steps lasts, about."""
HERE = Path(__file__).resolve().parents[1]
Row = dict[str, float]


class Trees:
    """The ranks of one checkout: processes that train a block of steps on command."""

    def __init__(self, tree: Path, arguments: argparse.Namespace, folder: Path) -> None:
        folder.mkdir()
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(tree)}
        settings = [
            arguments.model,
            arguments.recipe,
            str(Path(arguments.data).resolve()),
            arguments.backend,
            str(arguments.ranks),
        ]
        self._ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), "--folder", str(folder), "--worker", *settings],
                cwd=tree,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(arguments.ranks)
        ]
        self._answers()

    def _answers(self) -> list[Row]:
        lines = [rank.stdout.readline() for rank in self._ranks if rank.stdout is not None]
        return [dict(zip(KEYS, map(float, line.split()), strict=False)) for line in lines]

    def block(self, way: str, steps: int) -> Row:
        """Train `steps` steps; returns the slower rank's seconds, and the mean over ranks of the other figures."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{way} {steps}\n")
            rank.stdin.flush()
        rows = self._answers()
        return {key: (max if key == "wall" else mean)([row[key] for row in rows]) / steps for key in KEYS}

    def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            rank.terminate()
            rank.wait()


KEYS = ("wall", "cpu", "exchange", "copy", "hidden")


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def work(rank: int, folder: Path, model: str, recipe_name: str, data: str, backend_name: str, ranks: str) -> None:
    """Be a rank: read `way steps` from standard input, write seconds of wall, processor, exchange and copying."""
    from ddp.backends.base import load
    from ddp.core.messages.commands import Join
    from ddp.core.policies.sync import Sync
    from ddp.core.samples.spans import Batch
    from ddp.engine.loop import TrainingLoop
    from ddp.replica.task import Job

    models: Any = import_module(
        "bench.models" if Path("bench/models").exists() else "models"
    )  # as in earlier checkouts
    world = int(ranks)
    recipe = models.load(model).recipes[recipe_name]
    size = recipe.batch_size
    task = partial(models.make_task, model, recipe, data)
    loop = TrainingLoop(Job(task, 1, size, 0, world, Sync(), backend_name, folder), rank, lambda event: None)
    loaded: Any = load(backend_name)
    backend = getattr(loaded, "Backend", loaded)(loop.job, rank, loop)  # a module, in earlier checkouts
    print(flush=True)
    replica, slices, done = loop.replica, loop.meter._slices, 0
    teams: dict[str, Any] = {"alone": None}
    per_epoch = max(replica.samples // (size * world), 1)
    for line in sys.stdin:
        way, steps = line.split()
        if "together" not in teams:
            backend.join(Join(rank, 0, tuple(range(world)), False, "benchmark"))
            teams["together"] = backend.gradient_sync(replica)
        replica.gradient_sync = teams[way]
        wall, cpu = time.perf_counter(), time.process_time()
        for step in range(done, done + int(steps)):
            start = step % per_epoch * size * world
            replica.step(Batch(0, start + rank * size, start + (rank + 1) * size, world * size), float(start))
        wall, cpu, done = time.perf_counter() - wall, time.process_time() - cpu, done + int(steps)
        kinds: Counter[str] = Counter()
        for each in slices:
            kinds[each.kind] += each.seconds
        slices.clear()
        replica.exchanged()
        print(wall, cpu, kinds["exchange"] + kinds["wait"], kinds["copy"], kinds["hidden"], flush=True)


def spread(values: list[float]) -> str:
    """Return the median with the quartiles."""
    low, _, high = quantiles(values, n=4)
    return f"{median(values):.3f} ({low:.3f} to {high:.3f})"


def compare(arguments: argparse.Namespace) -> None:
    """Train blocks in turns, and print ratios of each pair."""
    with tempfile.TemporaryDirectory() as folder:
        trees = {"before": Path(arguments.before).resolve(), "now": HERE}
        ranks = {name: Trees(tree, arguments, Path(folder) / name) for name, tree in trees.items()}
        for each in ranks.values():
            each.block("together", 3)
        steps = arguments.steps or max(2, round(BLOCK_S / ranks["now"].block("alone", 5)["cpu"]))
        turns: dict[str, list[Row]] = {"before": [], "now": [], "alone": []}
        for turn in range(arguments.pairs):
            order = list(ranks)
            for name in order if turn % 2 else reversed(order):
                turns[name].append(ranks[name].block("together", steps))
            turns["alone"].append(ranks["now"].block("alone", steps))
        for each in ranks.values():
            each.close()
    pairs = list(zip(turns["before"], turns["now"], strict=True))
    print(
        f"{arguments.model}/{arguments.recipe}: {arguments.pairs} pairs of {steps} steps, load {os.getloadavg()[0]:.1f}"
    )
    for key in ("wall", "cpu"):
        print(f"  {key}: now / before {spread([now[key] / before[key] for before, now in pairs])}")
    for name, rows in turns.items():
        wall, cpu = (sorted(row[key] for row in rows) for key in ("wall", "cpu"))
        least = len(rows) // 10
        share = spread([(row["exchange"] + row["copy"]) / (row["wall"] or 1.0) for row in rows])
        times = ", ".join(
            f"{key} {1e3 * median(each):.3f} ms, a tenth below {1e3 * each[least]:.3f}"
            for key, each in (("wall", wall), ("cpu", cpu))
        )
        print(f"  {name}: {times}; waiting and communicating {share}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", help="the other checkout")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("--data", default="data")
    parser.add_argument("--backend", default="nccl", help="nccl, zero1, zero2 or zero3")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=2, help="1: what a rank itself does for its gradients")
    parser.add_argument("--steps", type=int, default=0, help="of a block; 0: as many as take about 0.15 s")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        sys.path[0] = os.environ["PYTHONPATH"]  # the checkout, not the folder of this script
        work(arguments.rank, arguments.folder, *arguments.worker)
    else:
        from benchmarks import frame  # not in a worker, whose checkout may be an earlier one

        frame.run_command(partial(compare, arguments))


if __name__ == "__main__":
    main()
