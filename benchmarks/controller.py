"""Measures the quality of the controller in virtual time. Deterministic: every number comes from a seed.

`python -m benchmarks.controller` prints the tables of docs/explanation/controller.md; `--write` puts them there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from benchmarks.documents import put
from benchmarks.frame import options, run_command, table
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Averaged, RoundClosed
from ddp.core.policies.asynchronous import Async
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.windows import WindowSettings
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate

STEP_S = 0.01
"""Of the fastest rank."""
WIRE_S, LATENCY_S = 0.002, 0.00002
UNCALIBRATED = 2
"""Windows that are granted before the first one is measured."""

StepCost = Callable[[int, int], float]
Run = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], list[Any]]
"""(function, arguments of each call) -> results in that order, found by all cores."""


@dataclass(frozen=True)
class Case:
    """Ranks and what bringing them together costs."""

    step_s: tuple[float, ...]
    blocking: bool
    jitter: float = 0.0
    """A step takes up to this part more or less, evenly spread."""
    wire_s: float = WIRE_S
    windows: int = 40
    """Length of the training, in windows of 10 steps of the slowest rank."""
    epochs: int = 2
    seed: int = 0

    @property
    def speed(self) -> float:
        """Steps per second of ranks that never wait: the sum-of-speeds bound."""
        return sum(1 / cost for cost in self.step_s)

    def world(self) -> World:
        """Batches of one sample, so that samples are steps."""
        steps = round(self.windows * 10 * max(self.step_s) * self.speed / self.epochs)
        return World(len(self.step_s), steps, 1, self.epochs, self.blocking, in_step=False, deadline_s=1e6)

    def cost(self, rank: int, step: int) -> float:
        """Seconds of a step."""
        if not self.jitter:
            return self.step_s[rank]
        noise = random.Random(f"{self.seed}.{rank}.{step}").uniform(-1, 1)
        return self.step_s[rank] * (1 + self.jitter * noise)

    def play(self, policy: WindowSettings, cost: StepCost | None = None, **options: Any) -> Simulation:
        """The run under `policy`; `options` are further fields of `Simulation`."""
        costs = Costs(
            cost or self.cost, latency_s=LATENCY_S, wire_s=self.wire_s, reduce_s=self.wire_s, report_s=2 * STEP_S
        )
        return simulate(policy, self.world(), costs=costs, tick_s=1e4, **options)


def drawn(size: int, spread: float, seed: int) -> tuple[float, ...]:
    """Seconds per step of `size` ranks, the slowest `spread` times as slow as the fastest, the rest anywhere between."""
    rng = random.Random(f"{size}.{spread}.{seed}")
    ratios = [1.0, spread, *(spread ** rng.random() for _ in range(size - 2))]
    rng.shuffle(ratios)
    return tuple(STEP_S * ratio for ratio in ratios)


def closed(played: Simulation) -> list[RoundClosed]:
    """The rounds of a run."""
    return [record for _, record in played.records if isinstance(record, RoundClosed)]


def plans(played: Simulation) -> list[Plan]:
    """The plans of a run."""
    return [record for _, record in played.records if isinstance(record, Plan)]


def regret(case: Case, played: Simulation, skipped: int = UNCALIBRATED) -> float:
    """Part of the time after calibration that the oracle would not have needed.

    The oracle knows all speeds and gives out parts of a step: all ranks are always busy, but for the time on the wire of as
    many averages as there were, where ranks block. The ends of epochs and of the training count.
    """
    rounds = closed(played)
    begin = rounds[skipped - 1].at
    end = max(record.at for _, record in played.records if isinstance(record, Averaged))
    after = [entry for entry in played.trained if entry.stop > begin]
    steps = sum(min(1.0, (entry.stop - begin) / (entry.stop - entry.start)) for entry in after)
    wire = case.wire_s * (len(rounds) - skipped) if case.blocking else 0.0
    return 1 - (steps / case.speed + wire) / (end - begin)


def overhead(case: Case, played: Simulation, skipped: int) -> float:
    """Median over windows of the time of an average over the window's."""
    shares = []
    for window in closed(played)[skipped:]:
        shares.append(window.sync_s / max(window.busy_s))
    return sorted(shares)[len(shares) // 2] if shares else 0.0


def anchor_changes(played: Simulation, skipped: int) -> float:
    """Changes of the anchor per window, after the first `skipped`."""
    changes, windows, anchor = 0, 0, None
    for _, record in played.records:
        if isinstance(record, RoundClosed):
            windows += 1
        elif isinstance(record, Plan):
            changes += windows > skipped and record.anchor != anchor
            anchor = record.anchor
    return changes / max(windows - skipped, 1)


def followed(policy: WindowSettings, blocking: bool, jitter: float, seed: int = 0) -> tuple[int, int]:
    """Windows until a rank that becomes half as fast, and one that becomes fast again, has the count that fits.

    Counted are windows that the rank began at its new speed and whose count is more than 15 % off, relative to rank 0.
    """
    case = Case((STEP_S, STEP_S, 2.5 * STEP_S), blocking, jitter, windows=50, seed=seed)
    begin, end = 300, 520
    policy = replace(policy, max_anchor=policy.anchor)
    played = case.play(policy, lambda rank, step: case.cost(rank, step) * (1 + (rank == 1 and begin <= step < end)))
    done, off = 0, [0, 0]
    for window in closed(played):
        slow, past = begin <= done < end, done >= end
        share = window.steps[1] / window.steps[0] * (2 if slow else 1)
        if (slow or past) and abs(share - 1) > 0.15:
            off[past] += 1
        done += window.steps[1]
    return off[0], off[1]


MODES: dict[str, tuple[WindowSettings, bool]] = {
    "cadence, blocking": (Cadence(), True),
    "cadence, not blocking": (Cadence(), False),
    "async, blocking": (Async(), True),
    "async, not blocking": (Async(), False),
}
SHOWN = [mode for mode in MODES if mode != "async, blocking"]
"""Where ranks block a tuned overshoot is none, so `async` does what `cadence` does."""
BACKENDS = SHOWN[:2]
SPREADS = (1.0, 1.2, 2.0, 4.0, 8.0)
DRAWS = {2: 2, 4: 2, 8: 2, 16: 1, 32: 1, 64: 1}
"""Ranks -> draws of speeds for each spread."""


def _length(size: int) -> int:
    """Windows of a run: fewer for many ranks, whose steps are as many."""
    return max(15, min(40, 240 // size))


def _regret(mode: str, size: int, spread: float, seed: int) -> float:
    policy, blocking = MODES[mode]
    case = Case(drawn(size, spread, seed), blocking, windows=_length(size))
    return regret(case, case.play(policy))


def _regret_table(run: Run) -> str:
    keys = [(mode, size) for size in reversed(DRAWS) for mode in SHOWN]  # the longest first
    draws = [[(*key, spread, seed) for spread in SPREADS for seed in range(DRAWS[key[1]])] for key in keys]
    found = iter(run(_regret, [draw for some in draws for draw in some]))
    regrets = {key: [next(found) for _ in some] for key, some in zip(keys, draws, strict=True)}
    rows = [[size, *(_mean_worst(regrets[mode, size]) for mode in SHOWN)] for size in DRAWS]
    return table(rows, ["ranks", *(f"{mode}: mean, worst" for mode in SHOWN)])


def _mean_worst(some: list[float]) -> str:
    return f"{mean(some):.2%}, {max(some):.2%}"


def _jittery(smoothing: str, mode: str, size: int, seed: int) -> tuple[float, float]:
    """(regret, changes of the anchor per window) at 20 % jitter."""
    policy, blocking = MODES[mode]
    case = Case(drawn(size, 4.0, seed), blocking, jitter=0.2, windows=60, seed=seed)
    played = case.play(replace(policy, smoothing=smoothing))
    return regret(case, played), anchor_changes(played, 5)


def _follow(smoothing: str, mode: str, jitter: float, seed: int) -> tuple[int, int]:
    policy, blocking = MODES[mode]
    return followed(replace(policy, smoothing=smoothing), blocking, jitter, seed)


def _smoothing_table(run: Run) -> str:
    rows = []
    for smoothing, mode in product(("adaptive", "trust"), SHOWN):
        off = run(_follow, [(smoothing, mode, jitter, seed) for jitter in (0.0, 0.2) for seed in range(3)])
        noisy = run(_jittery, [(smoothing, mode, size, seed) for size in (2, 4, 8) for seed in range(3)])
        changes = [change for _, change in noisy]
        numbers = f"{mean(lost for lost, _ in noisy):.2%}", f"{mean(changes):.3f}", f"{max(changes):.3f}"
        rows.append([smoothing, mode, max(slow for slow, _ in off), max(fast for _, fast in off), *numbers])
    headers = ["smoothing", "mode", "half as fast", "back again", "regret", "anchor changes", "worst"]
    return table(rows, headers)


def _overhead(mode: str, wire_s: float, target: float) -> tuple[int, float]:
    """(anchor in the end, median part of a window that an average takes)."""
    policy, blocking = MODES[mode]
    case = Case(drawn(4, 4.0, 0), blocking, wire_s=wire_s, windows=300, epochs=1)
    played = case.play(replace(policy, overhead_target=target))
    return plans(played)[-1].anchor, overhead(case, played, 10)


def _overhead_table(run: Run) -> str:
    cells = list(product((0.002, 0.01, 0.05), (0.02, 0.05)))
    found = iter(run(_overhead, [(mode, *cell) for cell in cells for mode in BACKENDS]))
    rows = [
        [f"{wire * 1e3:g}", f"{target:g}", *("{}, {:.4f}".format(*next(found)) for _ in BACKENDS)]
        for wire, target in cells
    ]
    headers = ["cost, ms", "target", *(f"{mode}: anchor, measured" for mode in ("blocking", "not blocking"))]
    return table(rows, headers)


TABLES: dict[str, Callable[[Run], str]] = {
    "regret": _regret_table,
    "smoothing": _smoothing_table,
    "overhead": _overhead_table,
}


def main(names: Iterable[str], write: bool) -> None:
    """Print these tables, or put each between its marks in the document."""
    tables: dict[str, str] = {}
    with ProcessPoolExecutor() as pool:

        def run(job: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
            return list(pool.map(partial(_call, job), arguments))

        for name in names:
            tables[name] = TABLES[name](run)
            print(tables[name], end="\n\n", flush=True)
    if write:
        put("explanation/controller.md", **tables)


def _call(job: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return job(*arguments)


if __name__ == "__main__":
    parser = options(__doc__, "put the tables into docs/explanation/controller.md")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), help="these tables")
    asked = parser.parse_args()
    run_command(partial(main, asked.only, asked.write))
