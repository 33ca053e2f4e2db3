"""As many seeds reach the target as expected, given how many of the baseline do.

The target of a cell's own baseline is the median of its seeds less two standard deviations. A cell that is compared
with solo must reach the recipe's target instead, which every sound mode reaches, as it may be worse than solo by a
margin.
"""

from __future__ import annotations

from bench.validate.checks.diverged import rate
from bench.validate.checks.levels import trained
from bench.validate.statistics.rates import upper
from bench.validate.statistics.target_crossing import samples_to
from bench.validate.verdicts.findings import Case, Finding


def check(case: Case) -> Finding | None:
    """Return the claim about the number of seeds; None without a finished run, a reference or a target."""
    runs = trained(case.cell)
    if not runs or case.match is None:
        return None
    own, reference = case.match.own, case.match.reference
    target = reference.target.value if own else runs[0].target.value
    if target is None:
        return None
    reached = [m.status == "ok" and (samples_to(m, target) is not None if own else m.target.reached) for m in runs]
    missed, base = len(reached) - sum(reached), reference.misses(target)
    bound = f"at most {upper(missed, len(runs)):.0%} miss it, 95 %"
    whose = "the baseline's " if own else ""
    what = f"{sum(reached)} of {len(runs)} seeds reach {whose}{reference.metric} {target:g} ({bound}), "
    what += f"in the baseline {base[1] - base[0]} of {base[1]}"
    return rate("target", case, what, (missed, len(runs)), base)
