"""Measures the error rates of the verdicts: 2,000 simulated sweeps of 48 cells, judged by the same code as real
sweeps.

`python -m benchmarks.calibration` prints the tables of docs/explanation/validation.md; `--write` puts it there. Seeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.validate.statistics.rank_tests import scatter, shift
from bench.validate.statistics.rates import SURPRISE, excess
from bench.validate.statistics.significance import DEVIATIONS, LOOKS, PROOF, VARIANCE, Call, Floats, decide, holm
from benchmarks.documents import put
from benchmarks.frame import options, table

SWEEPS, CELLS, WORKLOADS = 2_000, 48, 6
"""Cells of a sweep share the baseline of their workload: 6 of them, 8 cells each."""
BLOCK = 500
"""Sweeps drawn at once."""
RARELY = 0.1
"""Share of seeds that diverge in the family that has some."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def _diverging(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    return np.where(rng.random(size) < RARELY, np.nan, rng.standard_normal(size))


def _collapsing(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    return rng.standard_normal(size) + 20 * (rng.random(size) < RARELY)


FAMILIES: dict[str, Draw] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "lognormal": lambda rng, size: np.exp(rng.standard_normal(size)),
    "t(3)": lambda rng, size: rng.standard_t(3, size),
    "1 in 10 diverges": _diverging,
    "1 in 10 collapses": _collapsing,
}
"""Name -> draws values; larger is worse, so that tails are to the bad side. NaN: the seed diverged. What collapses ends 20
standard deviations worse."""


@dataclass(frozen=True)
class Scenario:
    """What is true of simulated cells. Cells and baseline are drawn from one family."""

    name: str
    base_seeds: int = 20
    shift: float = 0.0
    """How much worse the cells are, in margins."""
    spread: float = 1.0
    """Standard deviation of the cells, in baselines'."""
    rounded: float = 0.0
    """Values are rounded to multiples of this."""
    floor: float = 0.0
    """Practical floor of the margin, in units of the family."""
    family: str = "normal"


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
    draw = FAMILIES[scenario.family]
    base = _rounded(draw(rng, (sweeps, WORKLOADS, scenario.base_seeds)), scenario.rounded)
    sd = np.maximum(np.nanstd(base, axis=-1, ddof=1), scenario.rounded / np.sqrt(12))
    margin = np.repeat(np.maximum(scenario.floor, DEVIATIONS * sd), CELLS // WORKLOADS, axis=-1)
    base = np.repeat(base, CELLS // WORKLOADS, axis=1)
    drawn = draw(rng, (sweeps, CELLS, LOOKS[-1])) * scenario.spread
    runs = _rounded(drawn + (scenario.shift * margin)[..., None], scenario.rounded)
    ended = np.full((sweeps, CELLS), Call.INCONCLUSIVE, np.int64)
    variance, better = np.zeros((sweeps, CELLS), bool), np.zeros((sweeps, CELLS), bool)
    used = np.zeros((sweeps, CELLS))
    first = 0.0
    for size in LOOKS:
        going_on = ended == Call.INCONCLUSIVE
        levels = shift(base, runs[..., :size], margin)
        calls = _together(decide(levels, np.full((sweeps, CELLS), size), scenario.base_seeds), base, runs[..., :size])
        ended = np.where(going_on, calls, ended)
        used = np.where(going_on, size, used)
        variance |= going_on & (holm(scatter(base, runs[..., :size])) <= VARIANCE)
        better |= going_on & ((holm(levels.p_better) <= PROOF) | levels.gross_better)
        first = first or float((ended == Call.PASS).mean())
    failed = (ended == Call.INFERIOR) | (ended == Call.NOT_SHOWN)
    return sweeps, [
        float((ended == Call.PASS).mean()),
        first,
        float((ended == Call.INCONCLUSIVE).mean()),
        *(float(kind.any(axis=-1).mean()) for kind in (failed, variance, better)),
        float(used.mean()),
    ]


def _together(levels: NDArray[np.int64], base: Floats, runs: Floats) -> NDArray[np.int64]:
    """Return what a cell comes to by its values and by how many of its seeds diverged, the graver of both."""
    theirs, mine = (np.isnan(side).sum(axis=-1) for side in (base, runs))
    p = excess(base.shape[-1], runs.shape[-1])[theirs, mine]
    expected = (mine == 0) | ((theirs > 0) & (p > SURPRISE))
    passing = np.where(expected, levels, np.where(levels == Call.PASS, Call.INCONCLUSIVE, levels))
    return np.where(holm(p) <= PROOF, Call.INFERIOR, passing)


def _rounded(values: Floats, to: float) -> Floats:
    return np.round(values / to) * to if to else values


SCENARIOS = (
    Scenario("half way to the margin", shift=0.5),
    Scenario("better by the margin", shift=-1.0),
    Scenario("better by two margins", shift=-2.0),
    Scenario("equal, rounded to 1 sd", rounded=1.0),
    Scenario("at the margin, rounded to 1 sd", shift=1.0, rounded=1.0),
    Scenario("at the margin, floor of 4 sd", shift=1.0, floor=4.0),
    Scenario("at the margin, sd of the cells 1.5 times", shift=1.0, spread=1.5),
    Scenario("equal, sd of the cells 3 times", spread=3.0),
    Scenario("equal", base_seeds=5),
    Scenario("at the margin", base_seeds=5, shift=1.0),
    Scenario("twice the margin", base_seeds=5, shift=2.0),
)


def families(sweeps: int = SWEEPS) -> str:
    """The table of what holds whatever the distribution, in Markdown."""
    rows = []
    for number, family in enumerate(FAMILIES):
        equal, at, twice = (play(Scenario("", shift=far, family=family), sweeps, number) for far in (0.0, 1.0, 2.0))
        shares = equal.passed, equal.passed_first, equal.any_fail, equal.any_variance, at.passed, twice.passed
        rows.append([family, *(f"{share:.3f}" for share in shares), f"{equal.seeds:.1f}"])
    equals = ["equal: pass", "pass at 3 seeds", "any fail", "any shift"]
    headers = ["seeds are", *equals, "at the margin: pass", "twice: pass", "seeds, if equal"]
    return table(rows, headers, left=1)


def others(sweeps: int = SWEEPS) -> str:
    """The table of normal seeds, in Markdown."""
    rows = []
    for number, scenario in enumerate(SCENARIOS):
        t = play(scenario, sweeps, seed=number)
        shares = t.passed, t.inconclusive, t.any_fail, t.any_variance, t.any_suspicious
        rows.append([scenario.name, scenario.base_seeds, *(f"{share:.3f}" for share in shares), f"{t.seeds:.1f}"])
    headers = ["cells", "baseline", "pass", "inconclusive", "any fail", "any shift", "any suspicious", "seeds"]
    return table(rows, headers, left=1)


def main() -> None:
    """Print the table, or write it."""
    parser = options(__doc__, "put the tables into docs/explanation/validation.md")
    parser.add_argument("--sweeps", type=int, default=SWEEPS)
    asked = parser.parse_args()
    began = time.monotonic()
    text = f"{families(asked.sweeps)}\n\n{others(asked.sweeps)}"
    print(text)
    scenarios, seconds = 3 * len(FAMILIES) + len(SCENARIOS), time.monotonic() - began
    print(f"{scenarios} scenarios x {asked.sweeps:,} sweeps x {CELLS} cells in {seconds:.0f} s")
    if asked.write:
        put("explanation/validation.md", calibration=text)


if __name__ == "__main__":
    main()
