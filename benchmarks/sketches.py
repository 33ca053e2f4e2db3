"""Measures the cost of sketches and of the steps kept for audits: their shares of a run's processor time, and the
bytes that sketches add to its records.

    python -m benchmarks.sketches [--epochs N] [--write]

It makes whole runs of quick recipes with two ranks, which take turns in one process, so that the clock counts no other
work. The time is counted within one run, as two runs, with and without, differ by more than this cost. The audit
itself comes after the training, in a process of its own.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench import models
from bench.config.compose import composing
from bench.config.composed import typed
from bench.config.config_checks import Machine
from bench.config.plan import RunPlan, plan
from bench.models.data import DATA
from benchmarks import frame
from benchmarks.documents import put
from ddp.core.messages.events import Averaged, Evaluated, Finished, Progress, Ready, RoundClosed
from ddp.engine import elche
from ddp.engine.in_process import InProcessRanks
from ddp.engine.round_sketches import RoundSketches
from ddp.process.codec import encode
from ddp.replica.evidence import sketcher, step_sketches
from ddp.replica.evidence.keeper import StepKeeper

MODELS, MODES = ("mlp", "lenet", "resnet_graph", "gpt_nano"), ("nccl_cadence", "cpu_async", "nccl_sync")
WHEN = [f"{name}_{when}" for name in ("sketch", "optimizer") for when in ("before", "after", "average")]
FIELDS = ("sketch", "sketched", "exchanged", "optimizer", *WHEN)
TIMES = 5
"""How often records are encoded."""
Spending = Sequence[tuple[type, tuple[str, ...]]]
SKETCHING: Spending = (
    (RoundSketches, ("replica", "average")),
    (sketcher.Sketcher, ("model", "optimizer")),
    (sketcher.StepSum, ("add", "text")),
    (step_sketches.StepSketches, ("begin",)),
)
KEEPING: Spending = ((StepKeeper, ("due", "begin", "add", "end", "cut", "rests", "average", "evaluated", "finish")),)


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    model: str
    mode: str
    sketches: int
    rounds: int
    round_s: float
    cpu_s: float
    sketch_s: float
    kept_s: float
    bytes: int
    sketch_bytes: int


def planned(words: Sequence[str]) -> RunPlan:
    """The run that a command line asks for."""
    with composing() as compose:
        config = typed(compose(list(words)))
        return plan(config, models.load(config.model.name), DATA, Machine(cores=2, gpus=0))


def timed(spent: list[float], spending: Spending) -> Callable[[], None]:
    """Count the seconds that a thread spends in methods; return what ends that."""
    depth, undo = [0], []

    def around(owner: type, name: str) -> None:
        inner = getattr(owner, name)

        def outer(*args: Any, **named: Any) -> Any:
            began, depth[0] = time.thread_time(), depth[0] + 1
            try:
                return inner(*args, **named)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    spent[0] += time.thread_time() - began

        setattr(owner, name, outer)
        undo.append(lambda: setattr(owner, name, inner))

    for owner, names in spending:
        for name in names:
            around(owner, name)
    return lambda: [end() for end in undo] and None


def bare(record: Any) -> Any:
    """A record without sketches."""
    own = [field for field in fields(record) if field.name in FIELDS and field.default is not MISSING]
    return replace(record, **{field.name: field.default for field in own}) if own else record


def encoding(records: Sequence[tuple[Any, float]]) -> float:
    """Return the seconds of processor time to encode records: of the time that other programs disturb the least."""
    spent = []
    for _ in range(TIMES):
        began = time.thread_time()
        for record, at in records:
            encode(record, at)
        spent.append(time.thread_time() - began)
    return min(spent)


def measure(model: str, mode: str, epochs: int) -> Cost:
    """Train one cell."""
    words = [f"model={model}", f"mode={mode}", "recipe=quick", "world_size=2"]
    made = planned([*words, f"train.epochs={epochs}"] if epochs else words)
    spent, kept, clock, records = [0.0], [0.0], [0.0, 0.0], list[tuple[Any, float]]()

    def emit(record: Any, at: float) -> None:
        if isinstance(record, Ready | Finished):  # from the last rank that is ready to the last that is done
            clock[isinstance(record, Finished)] = time.process_time()
        records.append((record, at))

    processes, elche.RankProcesses = elche.RankProcesses, InProcessRanks  # type: ignore[assignment, misc]
    ends = timed(spent, SKETCHING), timed(kept, KEEPING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            elche.run(replace(made.job, scratch=Path(folder), checkpoints=None), emit)
            slices = sum(path.stat().st_size for path in Path(folder).glob("slices-*.jsonl"))
    finally:
        for end in ends:
            end()
        elche.RankProcesses = processes  # type: ignore[misc]
    plain = [(bare(record), at) for record, at in records]
    lines, without = [encode(*each) for each in records], [encode(*each) for each in plain]
    writing = encoding(records) - encoding(plain)
    size, less = sum(map(len, lines)), sum(map(len, without))
    closed = [record.at for record, _ in records if isinstance(record, RoundClosed)]
    round_s = (closed[-1] - closed[0]) / (len(closed) - 1) if len(closed) > 1 else 0.0
    count = sum(bool(getattr(record, "sketch_after", "")) for record, _ in records if isinstance(record, Averaged))
    count += sum(len(record.exchanged) for record, _ in records if isinstance(record, Progress))
    count += sum(isinstance(record, Evaluated | Ready | Finished) for record, _ in records)
    seconds = spent[0] + max(writing, 0.0)
    return Cost(
        model, mode, count, len(closed), round_s, clock[1] - clock[0], seconds, kept[0], slices + less, size - less
    )


def table(costs: Sequence[Cost]) -> str:
    """In Markdown."""
    heads = ["model", "mode", "rounds", "ms a round", "sketched"]
    heads += ["of the processor time", "of the records", "kept for audits"]
    rows = []
    for c in costs:
        rounds = (f"{c.rounds}", f"{1e3 * c.round_s:.0f}") if c.rounds else ("-", "-")
        parts = (f"{c.sketch_s / c.cpu_s:.2%}", f"{c.sketch_bytes / c.bytes:+.1%}", f"{c.kept_s / c.cpu_s:.2%}")
        rows.append([c.model, c.mode, *rounds, f"{c.sketches}", *parts])
    return frame.table(rows, heads, left=2)


def main() -> int:
    parser = frame.options(__doc__, "put the table into docs/explanation/validation.md")
    parser.add_argument("--epochs", type=int, default=0, metavar="N", help="epochs of each run; 0: the recipe's")
    asked = parser.parse_args()
    costs = []
    for model, mode in itertools.product(MODELS, MODES):
        costs.append(measure(model, mode, asked.epochs))
        print(costs[-1], flush=True)
    print(table(costs))
    if asked.write:
        put("explanation/validation.md", sketches=table(costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
