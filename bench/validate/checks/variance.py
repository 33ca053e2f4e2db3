"""The seeds do not scatter more than those of the baseline: a mode with the right mean can still depend on luck."""

from __future__ import annotations

from bench.validate.checks import quality
from bench.validate.checks.levels import looked_at
from bench.validate.statistics.rank_tests import scatter
from bench.validate.verdicts.findings import Case, Finding, LevelClaim, Spread


def check(case: Case) -> Finding | None:
    """Return the claim about the distances of the final quality from its median; None below three seeds."""
    claim, runs = quality.check(case), looked_at(case.cell)
    if not isinstance(claim, LevelClaim) or case.match is None or len(runs) < 3:
        return None
    base = case.match.reference.metrics["quality"]
    values = [base.turned(m.final.eval) for m in runs if m.final.eval is not None]
    return Spread("variance", case, claim.what, float(scatter(base.turned_values, values)))
