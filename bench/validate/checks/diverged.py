"""No more seeds diverge than in the baseline. All seeds count, as the other checks judge only those that did not
diverge.

Diverged are runs with a loss that was not finite, and finished runs that ended worse than the baseline's worst seed by
five margins. If no seed finished, `status` reports it; if all that finished collapsed, `quality` does.
"""

from __future__ import annotations

from bench.results.schema import Metrics
from bench.validate.baselines.reference import Metric
from bench.validate.checks.levels import trained
from bench.validate.statistics.rank_tests import GROSS_OF_FEW
from bench.validate.statistics.rates import SURPRISE, excess, upper
from bench.validate.verdicts.findings import Case, Finding, Rate


def check(case: Case) -> Finding | None:
    """Return the claim about the number of diverged seeds; None without a finished run or a reference."""
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
    what += f"in the baseline {base[0]} of {base[1]}: at most {upper(*base):.0%}"
    return rate("diverged", case, what, (len(lost), len(runs)), base)


def collapsed(m: Metrics, quality: Metric) -> bool:
    """Return whether a finished run ended so far below the baseline that it counts as diverged."""
    final = m.final.eval
    return final is not None and quality.turned(final) > max(quality.turned_values) + GROSS_OF_FEW * quality.margin


def rate(name: str, case: Case, what: str, seeds: tuple[int, int], base: tuple[int, int]) -> Rate:
    """Return the claim that too many seeds have a property; `seeds` and `base` are (seeds with it, all seeds)."""
    p = float(excess(base[1], seeds[1])[base[0], seeds[0]]) if seeds[0] else 1.0
    return Rate(name, case, what, p, seeds[0] == 0 or (base[0] > 0 and p > SURPRISE))
