"""Do the verdicts keep what they promise? 10,000 simulated sweeps of 48 cells, judged by the lines that judge real ones.

`python -m benchmarks.calibration` prints the table of docs/explanation/validation.md; `--write` puts it there. Seeded.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from bench.validate.statistics import DEVIATIONS, LOOKS, VARIANCE, Call, Floats, Moments, compare, decide, holm
from bench.validate.statistics import PROOF as SUSPICION
from benchmarks.documents import put

SWEEPS, CELLS, WORKLOADS = 10_000, 48, 6
"""Cells of a sweep share the baseline of their workload: 6 of them, 8 cells each."""
BLOCK = 1_000
"""Sweeps drawn at once."""


@dataclass(frozen=True)
class Scenario:
    """What is true of simulated cells. Values are normal with a baseline's standard deviation of 1."""

    name: str
    base_seeds: int = 20
    shift: float = 0.0
    """How much worse the cells are, in margins."""
    spread: float = 1.0
    """Standard deviation of the cells."""
    rounded: float = 0.0
    """Values are rounded to multiples of this."""
    floor: float = 0.0
    """Practical floor of the margin, in standard deviations."""


@dataclass
class Tally:
    """What became of the cells."""

    passed: float
    passed_first: float
    inconclusive: float
    any_fail: float
    any_variance: float
    any_suspicious: float
    seeds: float
    """Mean number that a cell was run with until it was decided."""


def play(scenario: Scenario, sweeps: int = SWEEPS, seed: int = 0) -> Tally:
    """Simulate and judge; rates over all sweeps."""
    rng = np.random.default_rng(seed)
    blocks = [_block(scenario, min(BLOCK, sweeps - done), rng) for done in range(0, sweeps, BLOCK)]
    shares = np.array([size for size, _ in blocks]) / sweeps
    return Tally(*(shares @ np.array([rates for _, rates in blocks])))


def _block(scenario: Scenario, sweeps: int, rng: np.random.Generator) -> tuple[int, list[float]]:
    raw = rng.standard_normal((sweeps, WORKLOADS, scenario.base_seeds))
    base = Moments.of(_rounded(raw, scenario.rounded))
    base = Moments(*(np.repeat(part, CELLS // WORKLOADS, axis=-1) for part in (base.n, base.mean, base.sd)))
    margin = np.maximum(scenario.floor, DEVIATIONS * np.maximum(base.sd, scenario.rounded / np.sqrt(12)))
    drawn = rng.standard_normal((sweeps, CELLS, LOOKS[-1])) * scenario.spread
    runs = _rounded(drawn + (scenario.shift * margin)[..., None], scenario.rounded)
    ended = np.full((sweeps, CELLS), Call.INCONCLUSIVE, np.int64)
    variance, better = np.zeros((sweeps, CELLS), bool), np.zeros((sweeps, CELLS), bool)
    used = np.zeros((sweeps, CELLS))
    first = 0.0
    for size in LOOKS:
        going_on = ended == Call.INCONCLUSIVE
        found = compare(base, Moments.of(runs[..., :size]), margin, scenario.rounded)
        calls = decide(found, np.full((sweeps, CELLS), size), base.n)
        ended = np.where(going_on, calls, ended)
        used = np.where(going_on, size, used)
        variance |= going_on & (holm(found.p_variance) <= VARIANCE)
        better |= going_on & (holm(found.p_better) <= SUSPICION)
        first = first or float((ended == Call.PASS).mean())
    failed = (ended == Call.INFERIOR) | (ended == Call.NOT_SHOWN)
    return sweeps, [
        float((ended == Call.PASS).mean()),
        first,
        float((ended == Call.INCONCLUSIVE).mean()),
        *(float(kind.any(axis=-1).mean()) for kind in (failed, variance, better)),
        float(used.mean()),
    ]


def _rounded(values: Floats, to: float) -> Floats:
    return np.round(values / to) * to if to else values


SCENARIOS = (
    Scenario("at the margin", shift=1.0),
    Scenario("at the margin, floor of 4 sd", shift=1.0, floor=4.0),
    Scenario("at the margin, sd of the cells 1.5 times", shift=1.0, spread=1.5),
    Scenario("at the margin, rounded to 1 sd", shift=1.0, rounded=1.0),
    Scenario("half way to the margin", shift=0.5),
    Scenario("twice the margin", shift=2.0),
    Scenario("equal", shift=0.0),
    Scenario("equal, rounded to 1 sd", rounded=1.0),
    Scenario("better by the margin", shift=-1.0),
    Scenario("better by two margins", shift=-2.0),
    Scenario("equal, sd of the cells 3 times", spread=3.0),
    Scenario("at the margin", base_seeds=10, shift=1.0),
    Scenario("equal", base_seeds=10),
    Scenario("at the margin", base_seeds=5, shift=1.0),
    Scenario("equal", base_seeds=5),
    Scenario("twice the margin", base_seeds=5, shift=2.0),
)


def table(sweeps: int = SWEEPS) -> str:
    """The table, in Markdown."""
    rows = []
    for number, scenario in enumerate(SCENARIOS):
        t = play(scenario, sweeps, seed=number)
        shares = t.passed, t.inconclusive, t.any_fail, t.any_variance, t.any_suspicious
        rows.append([scenario.base_seeds, scenario.name, *(f"{share:.3f}" for share in shares), f"{t.seeds:.2f}"])
    headers = ["baseline seeds", "cells", "pass", "inconclusive", "any fail", "any shift", "any suspicious", "seeds"]
    return tabulate(
        rows, headers=headers, tablefmt="pipe", disable_numparse=True, colalign=("right", "left", *["right"] * 6)
    )


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/explanation/validation.md")
    parser.add_argument("--sweeps", type=int, default=SWEEPS)
    asked = parser.parse_args()
    began = time.monotonic()
    text = table(asked.sweeps)
    print(text)
    print(f"{len(SCENARIOS)} scenarios x {asked.sweeps:,} sweeps x {CELLS} cells in {time.monotonic() - began:.0f} s")
    if asked.write:
        put("explanation/validation.md", calibration=text)


if __name__ == "__main__":
    main()
