"""No more seeds diverge than of the baseline. None is left out: what a cell comes to elsewhere is half of it.

Counts runs whose loss was not finite, and finished ones that ended worse than the worst seed of the baseline by five
margins: what collapses has diverged, whatever its numbers. Where no seed finished `status` says so, where all that did
collapsed `quality`.
"""

from __future__ import annotations

from bench.results.schema import Metrics
from bench.validate.checks.levels import trained
from bench.validate.findings import Case, Finding, Rate
from bench.validate.ranks import GROSS_OF_FEW
from bench.validate.rates import SURPRISE, excess, upper
from bench.validate.reference import Metric


def check(case: Case) -> Finding | None:
    """Return the claim about the number of seeds; None without a finished run or a reference."""
    runs = trained(case.cell)
    if case.match is None or not runs:
        return None
    reference = case.match.reference
    quality, base = reference.metrics["quality"], (len(reference.diverged), reference.seeds + len(reference.diverged))
    fallen = [m.seed for m in runs if m.status == "ok" and collapsed(m, quality)]
    lost = [m.seed for m in runs if m.status == "diverged"]
    lost += fallen if len(fallen) < len(runs) - len(lost) else []
    which = f" ({', '.join(map(str, lost))})" if lost else ""
    what = f"{len(lost)} of {len(runs)} seeds diverged{which}: at most {upper(len(lost), len(runs)):.0%} do (95 %); "
    what += f"{base[0]} of {base[1]} of the baseline: at most {upper(*base):.0%}"
    return rate("diverged", case, what, (len(lost), len(runs)), base)


def collapsed(m: Metrics, quality: Metric) -> bool:
    """Return whether a finished run ended so far below the baseline that it is no worse seed but another kind of end."""
    final = m.final.eval
    return final is not None and quality.turned(final) > max(quality.turned_values) + GROSS_OF_FEW * quality.margin


def rate(name: str, case: Case, what: str, seeds: tuple[int, int], base: tuple[int, int]) -> Rate:
    """Return the claim that too many `seeds` do what so many of the baseline's did, each as (how many, of how many)."""
    p = float(excess(base[1], seeds[1])[base[0], seeds[0]]) if seeds[0] else 1.0
    return Rate(name, case, what, p, seeds[0] == 0 or (base[0] > 0 and p > SURPRISE))
