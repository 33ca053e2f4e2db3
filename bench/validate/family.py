"""From the claims of all cells to verdicts. Everything that looks at more than one cell is here, and all levels.

Claims of failure are adjusted over the family of one validation (Holm), each kind of claim for itself: levels, better than
can be, variances, rates. The chance that one of the cells fails though it is equal is bounded and printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.validate import next_runs
from bench.validate.findings import Finding, LevelClaim, Rate, Spread
from bench.validate.statistics import (
    GATING_SEEDS,
    LOOKS,
    PROOF,
    SPENT,
    VARIANCE,
    Call,
    Comparison,
    decide,
    family_risk,
    holm,
    level,
    next_look,
    power,
)
from bench.validate.verdict import Name, Verdict, verdict

SHOWN = 0.05
"""Level of the intervals in lines, where no look sets another one."""


@dataclass(frozen=True)
class Settled:
    """The verdicts, in the order of the findings, and what must be known of all of them."""

    verdicts: list[Verdict]
    footer: list[str]


def settle(findings: Sequence[Finding], accept_improvement: bool = False) -> Settled:
    """Decide the claims."""
    levels = [claim for claim in findings if isinstance(claim, LevelClaim)]
    spreads = [claim for claim in findings if isinstance(claim, Spread)]
    rates = [claim for claim in findings if isinstance(claim, Rate)]
    decided = {id(claim): verdict for claim, verdict in zip(levels, _levels(levels, accept_improvement), strict=True)}
    for spread, p in zip(spreads, holm([spread.p for spread in spreads]), strict=True):
        decided[id(spread)] = _spread(spread, float(p))
    for rate, p in zip(rates, holm([rate.p for rate in rates]), strict=True):
        decided[id(rate)] = _rate(rate, float(p))
    verdicts = [finding if isinstance(finding, Verdict) else decided[id(finding)] for finding in findings]
    return Settled(verdicts, _footer(levels, spreads, rates))


def _levels(claims: Sequence[LevelClaim], accept_improvement: bool) -> list[Verdict]:
    if not claims:
        return []
    columns = zip(*(vars(claim.comparison).values() for claim in claims), strict=True)
    family = Comparison(*map(np.array, columns))
    calls = decide(family, [claim.seeds for claim in claims], [_base(claim) for claim in claims])
    better = holm(family.p_better) <= PROOF
    return [
        _level(claim, Call(call), bool(good), accept_improvement)
        for claim, call, good in zip(claims, calls, better, strict=True)
    ]


def _level(claim: LevelClaim, call: Call, better: bool, accept_improvement: bool) -> Verdict:
    spent = float(level(claim.seeds)) or SHOWN
    low, high = (float(bound) for bound in claim.comparison.bounds(spent))
    interval = f"[{claim.show(low)}, {claim.show(high)}]"
    text = f"{claim.what}: {_direction(claim)}, one-sided {1 - spent:.1%} bounds {interval}"
    text += f", margin {claim.show(claim.margin)} ({claim.margin_why})"
    name, why = _word(claim, call)
    if name == "PASS" and better and claim.only_proved:
        why = "better by more than the margin, proved: propose a new baseline to keep it"
    elif name == "PASS" and better:
        name, why = ("PASS", "better than the margin, accepted") if accept_improvement else ("SUSPICIOUS", TOO_GOOD)
    variances = "; its seeds scatter more than the baseline's: variances not pooled" if claim.comparison.welch else ""
    return verdict(name, claim.check, claim.case.cell, f"{text}: {why}{variances}")


TOO_GOOD = (
    "better by more than the margin, proved: look for a leak, less data or another evaluation; if it is meant, say "
    "--accept-improvement and propose a new baseline"
)

MACHINE = " (if solo is as much slower here, it is the machine)"
NOISY = "too close to the margin, or too much noise; train the cell again on a quieter machine"


def _word(claim: LevelClaim, call: Call) -> tuple[Name, str]:
    """Return the verdict and the reason."""
    more = next_look(claim.seeds)
    if call is Call.INFERIOR:
        return "FAIL", f"inferiority proved{MACHINE if claim.only_proved else ''}"
    if claim.censored:
        why = f"{claim.censored} seeds never came so far, so this says too little: see the check `target`"
        return "INCONCLUSIVE", why
    if call is Call.PASS:
        return "PASS", "not inferior"
    if call is Call.NOT_SHOWN and not claim.only_proved:
        return "FAIL", f"not shown to be no worse, after the last look at {LOOKS[-1]} seeds"
    if more is not None:
        return "INCONCLUSIVE", f"not shown yet: {next_runs.seeds(claim.case.cell, more)}"
    if claim.only_proved:
        return "INCONCLUSIVE", f"neither shown nor disproved at {claim.seeds} seeds: {NOISY}"
    return "INCONCLUSIVE", f"the baseline has {_base(claim)} seeds, {GATING_SEEDS} would decide"


def _direction(claim: LevelClaim) -> str:
    worse = float(claim.comparison.worse)
    shown = claim.show(abs(worse))
    if shown == claim.show(0.0):
        return "equal"
    return f"{'worse' if worse > 0 else 'better'} by {shown}"


def _spread(claim: Spread, p: float) -> Verdict:
    text = f"{claim.what}, adjusted p {p:.2g} (limit {VARIANCE:g})"
    if p <= VARIANCE:
        text += ": its seeds scatter more than the baseline's"
        return verdict("VARIANCE_SHIFT", claim.check, claim.case.cell, text)
    return verdict("PASS", claim.check, claim.case.cell, text)


def _rate(claim: Rate, p: float) -> Verdict:
    text = f"{claim.what}, adjusted p {p:.2g} (limit {PROOF:g})"
    if p <= PROOF:
        return verdict("FAIL", claim.check, claim.case.cell, f"{text}: too few")
    if not claim.enough:
        more = next_look(len(claim.case.cell.one_each))
        need = next_runs.seeds(claim.case.cell, more) if more else "run more seeds"
        return verdict("INCONCLUSIVE", claim.check, claim.case.cell, f"{text}: fewer than expected; {need}")
    return verdict("PASS", claim.check, claim.case.cell, text)


def _base(claim: LevelClaim) -> int:
    assert claim.case.match is not None, "a level is compared with something"
    return claim.case.match.reference.seeds


def _footer(levels: Sequence[LevelClaim], spreads: Sequence[Spread], rates: Sequence[Rate]) -> list[str]:
    if not levels:
        return []
    strict = [claim for claim in levels if not claim.only_proved]
    risk = family_risk([claim.ratio for claim in strict], [_base(claim) for claim in strict])
    weakest = min(levels, key=lambda claim: float(power(claim.ratio, LOOKS[-1], _base(claim))))
    least = float(power(weakest.ratio, LOOKS[-1], _base(weakest)))
    looks = ", ".join(f"{size} seeds at {spent:.1%}" for size, spent in zip(LOOKS, SPENT, strict=True))
    lines = [
        f"looks: {looks}; together 5 % of a cell that is worse by its margin pass",
        f"family: {len(levels)} levels, {len(spreads)} variances, {len(rates)} rates; claims of failure are adjusted (Holm) "
        f"to {PROOF:.0%} a look; chance that any of these cells, if equal, ends as not shown: at most {risk:.2%}",
        f"power at equality, last look: {least:.4f} or more ({weakest.case.cell.name}, {weakest.check})",
    ]
    references = [claim.case.match.reference for claim in levels if claim.case.match]
    if provisional := sorted({reference.name for reference in references if not reference.gating}):
        why = f"fewer than {GATING_SEEDS} seeds, so nothing fails for not being shown"
        lines.append(f"provisional baselines ({why}): {'; '.join(provisional)}")
    return lines
