"""The seeds do not scatter more than those of the baseline: an average that is right in the mean can still be a lottery."""

from __future__ import annotations

from bench.validate.checks import quality
from bench.validate.findings import Case, Finding, LevelClaim, Spread


def check(case: Case) -> Finding | None:
    """Return the claim about the variance of the final quality; None below two seeds."""
    claim = quality.check(case)
    if not isinstance(claim, LevelClaim) or claim.seeds < 2:
        return None
    return Spread("variance", case, claim.what, float(claim.comparison.p_variance))
