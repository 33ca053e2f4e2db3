"""As many seeds reach the target as should: 98 of 100.

The target of a cell's own baseline is the median of its seeds less two standard deviations. A cell that is compared with
solo is held to the recipe's, which every sound way of training reaches: it may be worse than solo by a margin.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtr, betaincinv

from bench.validate.checks.levels import looked_at
from bench.validate.findings import Case, Finding, Rate
from bench.validate.target_crossing import samples_to

RATE = 0.977
"""Of a normal sample, what lies above its mean less two standard deviations."""
EXPECTED = 0.025
"""So rarely do sound cells have fewer seeds there than are expected."""


def expected(seeds: int) -> int:
    """Return the least number that is no surprise: 2 of 3, 4 of 5, 7 of 8, 9 of 10, 18 of 20."""
    return next(hits for hits in range(seeds + 1) if bdtr(hits, seeds, RATE) > EXPECTED)


def proven(hits: int, seeds: int) -> float:
    """Return the rate that so many hits prove at 95 %: the lower bound of Clopper and Pearson."""
    return float(betaincinv(hits, seeds - hits + 1, 0.05)) if hits else 0.0


def check(case: Case) -> Finding | None:
    """Return the claim about the number of seeds; None without a finished run or a reference."""
    runs = looked_at(case.cell)
    if not runs or case.match is None:
        return None
    own, reference = case.match.own, case.match.reference
    target = reference.target.value if own else runs[0].target.value
    hits = sum(samples_to(m, target) is not None if own else m.target.reached for m in runs)
    least = expected(len(runs))
    what = (
        f"{hits} of {len(runs)} seeds reach {reference.metric} {target:g} ({least} expected; "
        f"a rate above {proven(hits, len(runs)):.2f} is proved at 95 %)"
    )
    return Rate("target", case, what, float(np.asarray(bdtr(hits, len(runs), RATE))), hits >= least)
