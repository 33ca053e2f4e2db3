"""From the claims of all cells to verdicts, by the levels of `bench.validate.statistics.significance`. All code that
needs more than one cell is here.

Claims of failure are adjusted over all cells of one validation (Holm), separately for each kind: levels, better than
plausible, scatter, rates. Each line also says which loss the test would have found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.base.number_format import plural
from bench.results.cells import Cell
from bench.validate.statistics.significance import (
    FOUND,
    GATING_SEEDS,
    LOOKS,
    PROOF,
    SPENT,
    VARIANCE,
    Call,
    Flags,
    Floats,
    decide,
    holm,
    level,
    next_look,
)
from bench.validate.verdicts import next_runs
from bench.validate.verdicts.findings import Finding, LevelClaim, Rate, Spread
from bench.validate.verdicts.verdict import LevelFigures, Name, Verdict, verdict

SHOWN = 0.05
"""Level of the printed intervals where no look sets one."""


@dataclass(frozen=True)
class Settled:
    """The verdicts, in the order of the findings, and lines that hold for all of them."""

    verdicts: list[Verdict]
    footer: list[str]


def settle(findings: Sequence[Finding], accept_improvement: bool = False) -> Settled:
    """Turn all claims into verdicts."""
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


@dataclass(frozen=True)
class _Evidence:
    """The p-values of all level claims, as arrays along one axis."""

    p_inferior: Floats
    p_noninferior: Floats
    p_worse: Floats
    gross: Flags


def _levels(claims: Sequence[LevelClaim], accept_improvement: bool) -> list[Verdict]:
    if not claims:
        return []
    every = [claim.comparison for claim in claims]
    kinds = ("p_inferior", "p_noninferior", "p_worse", "gross")
    evidence = _Evidence(*(np.array([getattr(level, kind) for level in every]) for kind in kinds))
    calls = decide(evidence, [claim.seeds for claim in claims], [claim.base_seeds for claim in claims])
    better = holm([float(level.p_better) for level in every]) <= PROOF
    better |= np.array([bool(level.gross_better) for level in every])
    return [
        _level(claim, Call(call), bool(good), accept_improvement)
        for claim, call, good in zip(claims, calls, better, strict=True)
    ]


def _level(claim: LevelClaim, call: Call, better: bool, accept_improvement: bool) -> Verdict:
    spent = float(level(claim.seeds)) or SHOWN
    low, high = map(float, claim.comparison.bounds(spent))
    interval = f"[{claim.show(low)}, {claim.show(high)}]"
    text = f"{claim.what}: {_direction(claim)}, one-sided {1 - spent:.1%} bounds {interval}"
    text += f", margin {claim.show(claim.margin)} ({claim.margin_why})"
    name, why = _word(claim, call)
    if name == "PASS" and better and claim.only_proved:
        why = "proved better by more than the margin: propose a new baseline to keep it"
    elif name == "PASS" and better:
        name, why = ("PASS", "better than the margin, accepted") if accept_improvement else ("SUSPICIOUS", TOO_GOOD)
    why += f"; {claim.note}" if name == "PASS" and claim.note else ""
    extra = [line for line in (_sensitivity(claim), claim.aside) if line]
    own = claim.case.own is not None and not claim.case.cell.is_solo
    figures = LevelFigures(float(claim.comparison.worse), low, high, claim.margin, claim.seeds, claim.base_seeds, own)
    line = f"{'; '.join([text, *extra])}: {why}"
    judged = replace(verdict(name, claim.check, claim.case.cell, line), figures=figures)
    return _more(judged, claim.case.cell, claim.seeds) if name == "INCONCLUSIVE" else judged


def _more(judged: Verdict, cell: Cell, seeds: int) -> Verdict:
    """Return the verdict with the seeds that the next look lacks, and the command that trains them; unchanged after the
    last look."""
    following = next_look(seeds)
    if following is None:
        return judged
    return replace(judged, more=next_runs.training(cell, following), lacking=len(next_runs.lacking(cell, following)))


def _sensitivity(claim: LevelClaim) -> str:
    """Say which loss the test would have found at this look."""
    if math.isnan(claim.detectable):
        return f"no loss can be excluded by {plural(claim.seeds, 'seed')}"
    return f"with probability {FOUND:g} what is worse by {claim.show(claim.detectable)} would not pass"


TOO_GOOD = (
    "proved better by more than the margin: look for leaked or less data or another evaluation; if intended, pass "
    "--accept-improvement and propose a new baseline"
)

MACHINE = " (if solo is slower by as much here, the machine is the reason)"
NOISY = "too close to the margin, or too much noise; train the cell again on a quieter machine"


def _word(claim: LevelClaim, call: Call) -> tuple[Name, str]:
    """Return the verdict's name and its reason."""
    more = next_look(claim.seeds)
    if call is Call.INFERIOR:
        gross = "inferiority beyond any test: the best seed is worse than the baseline's worst by more than the margin"
        return "FAIL", gross if bool(claim.comparison.gross) else f"inferiority proved{MACHINE * claim.only_proved}"
    if call is Call.PASS:
        return "PASS", "not inferior"
    if call is Call.NOT_SHOWN and not claim.only_proved:
        return "FAIL", f"proved worse, and not shown to be within the margin, after the last look at {LOOKS[-1]} seeds"
    if more is not None:
        return "INCONCLUSIVE", f"not shown yet: {next_runs.seeds(claim.case.cell, more)}"
    if claim.only_proved:
        return "INCONCLUSIVE", f"neither shown nor disproved at {claim.seeds} seeds: {NOISY}"
    if claim.base_seeds < GATING_SEEDS:
        return "INCONCLUSIVE", f"the baseline has {claim.base_seeds} seeds, {GATING_SEEDS} are needed to decide"
    return (
        "INCONCLUSIVE",
        f"neither shown nor disproved after the last look at {LOOKS[-1]} seeds: they scatter too much",
    )


def _direction(claim: LevelClaim) -> str:
    worse = float(claim.comparison.worse)
    shown = claim.show(abs(worse))
    if shown == claim.show(0.0):
        return "equal"
    return f"{'worse' if worse > 0 else 'better'} by {shown} in the median"


def _spread(claim: Spread, p: float) -> Verdict:
    text = f"{claim.what}, adjusted p {p:.2g} (limit {VARIANCE:g})"
    if p <= VARIANCE:
        return verdict("VARIANCE_SHIFT", claim.check, claim.case.cell, f"{text}: {SCATTER}")
    return verdict("PASS", claim.check, claim.case.cell, text)


SCATTER = (
    "the seeds scatter more around their median than the baseline's, which a mean hides: train these seeds again, and look "
    "for a race, lost updates, or a learning rate that is too high"
)


def _rate(claim: Rate, p: float) -> Verdict:
    text = f"{claim.what}, adjusted p {p:.2g} (limit {PROOF:g})"
    if p <= PROOF:
        return verdict("FAIL", claim.check, claim.case.cell, f"{text}: proved to be more than in the baseline")
    if claim.expected:
        return verdict("PASS", claim.check, claim.case.cell, text)
    more = next_look(len(claim.case.cell.one_each))
    need = next_runs.seeds(claim.case.cell, more) if more else "neither explained by chance nor proved"
    shortfall = verdict("INCONCLUSIVE", claim.check, claim.case.cell, f"{text}: more than expected; {need}")
    return _more(shortfall, claim.case.cell, len(claim.case.cell.one_each))


def _footer(levels: Sequence[LevelClaim], spreads: Sequence[Spread], rates: Sequence[Rate]) -> list[str]:
    if not levels:
        return []
    looks = ", ".join(f"{size} seeds at {spent:.1%}" for size, spent in zip(LOOKS, SPENT, strict=True))
    lines = [
        f"looks: {looks}; together they pass a cell that is worse by its margin with 5 % probability",
        f"family: {len(levels)} tests of levels, {len(spreads)} of scatter, {len(rates)} of rates, adjusted (Holm): "
        f"if all cells are as good as their baselines, the chance of any FAIL is at most {PROOF:.0%} per look and kind",
    ]
    if hard := [claim for claim in levels if not claim.only_proved and smallest(claim) * len(levels) > PROOF]:
        fewest = min(claim.seeds for claim in hard)
        family = f"a family of {len(levels)}"
        lines.append(f"{plural(fewest, 'seed')} can prove only a gross loss in {family}: 5 or more can prove others")
    weakest = min(levels, key=lambda claim: claim.power)
    where = f"({weakest.case.cell.name}, {weakest.check})"
    lines.append(f"power for equal cells, last look: at least {weakest.power:.4f} {where}")
    references = [claim.case.match.reference for claim in levels if claim.case.match]
    if provisional := sorted({reference.name for reference in references if not reference.gating}):
        why = f"fewer than {GATING_SEEDS} seeds, so a missing proof is not a FAIL"
        lines.append(f"provisional baselines ({why}): {'; '.join(provisional)}")
    return lines


def smallest(claim: LevelClaim) -> float:
    """Return the smallest p-value that a rank test of so many seeds can give."""
    return 1 / math.comb(claim.base_seeds + claim.seeds, claim.seeds)
