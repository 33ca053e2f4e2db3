"""The learning rate is the baseline's at the same number of samples seen by all ranks: law 5.

The baseline holds the rate of one process as a function of the fraction of all samples trained. Another mode updates
the rate once per window, and ranks that run ahead are somewhat early. So each rate must lie in the range of the
baseline's rates between one window earlier and one later, within `NEAR`. On the mean over a run, rates must not be late
or early (`BEHIND`, `AHEAD`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict

NEAR = 0.01
"""Error of interpolating between two points of the baseline, as a fraction of the rate at schedule 1."""
POINTS = 200
"""Evenly spaced points that a baseline keeps; with those where the rate jumps or bends, it keeps up to twice as many."""
KEPT = NEAR / 4
"""Largest error of interpolating between these, as above."""
BEHIND = 0.1
"""Fraction of a window by which the mean rate may be late, on top of two steps of all ranks."""
AHEAD = 0.25
"""Fraction of a window by which it may be early, on top of two reports of all ranks, as other ranks' reports come
later."""
LEAP, FLAT = 1e-4, 1e-20
"""Smallest jump, as a fraction of the rate at schedule 1; and mean square of a slope that is none but rounding."""

Rates = Sequence[tuple[float, float]]
"""Points (fraction of all samples trained, rate at schedule 1) of a baseline."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if a rate lies outside of its range; None without a baseline that has rates, or without records."""
    match = case.match
    if match is None or not match.reference.rates:
        return None
    runs = [(run, apart) for run, apart in case.each(_compared, match.reference.rates) if apart.reports]
    if not runs:
        return None
    worst, where = max(((apart.worst, apart.where) for _, apart in runs), key=lambda far: far[0])
    for run, apart in runs:
        if apart.shifted:
            return verdict("FAIL", "rate", case.cell, f"seed {run.metrics.seed}: {apart.shifted}")
    line = f"learning rates within {worst:.2%} of the baseline's schedule (allowed: {NEAR:.0%})"
    if worst > NEAR:
        return verdict("FAIL", "rate", case.cell, f"{line}; {where}")
    return verdict("PASS", "rate", case.cell, line)


class _Apart(NamedTuple):
    """How far the rates of a run are from the baseline's."""

    reports: int
    worst: float = 0.0
    """Of the worst rate: distance from its range, as a fraction of the rate at schedule 1."""
    where: str = ""
    shifted: str = ""
    """By how much rates are late or early on the mean, if that is too much."""


def _compared(run: Run, known: Records, rates: Rates) -> _Apart:
    """Compare the rates of a run with those of the baseline."""
    if not known.progress:
        return _Apart(0)
    worst, where = _farthest(run, known, rates)
    return _Apart(len(known.progress), worst, where, _shifted(run.metrics, known, rates))


def course(m: Metrics, known: Records) -> tuple[np.ndarray, np.ndarray]:
    """Return (fraction of all samples that all ranks have trained, rate divided by the run's own base rate) at each
    report."""
    total = m.epochs_planned * known.ready[0].samples
    seen = np.cumsum([event.samples for event in known.progress]) / total
    return seen, np.array([event.lr for event in known.progress]) / _bases(m, known)


def _bases(m: Metrics, known: Records) -> np.ndarray:
    """Return the rate at schedule 1 at each report: it goes with the number of ranks, which a resumption may change."""
    growth = (m.lr_scale - 1) / (m.world_size - 1) if m.world_size > 1 else 0.0
    bases = np.full(len(known.progress), m.lr * m.lr_scale)
    at = np.array([event.at for event in known.progress])
    for event in reversed([event for event in known.resumed if event.ranks]):
        bases[at < event.at] = m.lr * (1 + growth * (event.ranks - 1))
    return bases


def points(m: Metrics, known: Records) -> list[tuple[float, float]]:
    """Return the points of the schedule that a baseline keeps."""
    seen, factor = course(m, known)
    chosen = np.unique(np.linspace(0, len(seen) - 1, POINTS).round().astype(int))
    while len(chosen) < 2 * POINTS:
        off = np.abs(np.interp(seen, seen[chosen], factor[chosen]) - factor)
        off[chosen] = 0.0
        worst = [first + int(off[first:last].argmax()) for first, last in pairwise(chosen.tolist())]
        more = sorted((k for k in worst if off[k] > KEPT), key=lambda k: -off[k])
        if not more:
            break
        chosen = np.union1d(chosen, more[: 2 * POINTS - len(chosen)])
    return [(float(seen[k]), float(factor[k])) for k in chosen]


def _farthest(run: Run, known: Records, rates: Rates) -> tuple[float, str]:
    """Return how far the worst rate lies outside of its range, as a fraction of the rate at schedule 1, and where."""
    m = run.metrics
    seen, factor = course(m, known)
    at, wanted = np.array(rates).T
    reach = _reach(m, known) / (m.epochs_planned * known.ready[0].samples)
    offsets = np.linspace(-reach, reach, 41)
    ranged = np.interp(seen[:, None] + offsets[None, :], at, wanted)
    low, high = ranged.min(axis=1), ranged.max(axis=1)
    own = [(at[k], at[k], k) for k in range(len(at))]
    unknown = [(at[k], at[k + 1], end) for k in _rough(at, wanted) for end in (k, k + 1)]
    for begin, end, k in own + unknown:
        near = slice(np.searchsorted(seen, begin - reach), np.searchsorted(seen, end + reach, side="right"))
        low[near], high[near] = np.minimum(low[near], wanted[k]), np.maximum(high[near], wanted[k])
    outside = np.maximum(low - factor, factor - high)
    k = int(outside.argmax())
    rate, base = known.progress[k].lr, _bases(m, known)[k]
    range_of_rates = f"{low[k] * base:.4g} to {high[k] * base:.4g} in the baseline"
    where = f"seed {m.seed}: {rate:.4g} after {seen[k]:.1%} of all samples, {range_of_rates}"
    return float(max(outside[k], 0.0)), where


def _rough(at: np.ndarray, wanted: np.ndarray) -> list[int]:
    """Return the gaps behind these points in which the rate may be anywhere between its values at both ends, as it jumps
    or bends there: it changes by more than `NEAR`, and by other slopes than in a gap beside it."""
    widths, change, beside = _slopes(at, wanted)
    rough = (np.abs(change) > NEAR) & (np.abs(beside * widths - change).max(axis=0) > NEAR)
    return [int(k) for k in np.flatnonzero(rough)]


def _jumps(at: np.ndarray, wanted: np.ndarray, shift: float) -> list[int]:
    """Return the gaps behind these points in which the rate jumps: its slope is not between those beside it, by more than a
    shift of the points, as a fraction of the run, explains."""
    widths, change, beside = _slopes(at, wanted)
    outside = np.maximum(beside.min(axis=0) * widths - change, change - beside.max(axis=0) * widths)
    return [int(k) for k in np.flatnonzero(outside > LEAP + shift * np.abs(beside).max(axis=0))]


def _slopes(at: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the width of each gap between the points, the change of the rate in it, and the slopes on both sides of it."""
    widths, change = np.diff(at), np.diff(wanted)
    slopes = change / np.maximum(widths, 1e-12)
    return widths, change, np.array([np.append(slopes[:1], slopes[:-1]), np.append(slopes[1:], slopes[-1:])])


def _shifted(m: Metrics, known: Records, rates: Rates) -> str:
    """Say by how many samples rates are late or early on the mean, if that is too much; empty: it is not.

    A small shift of the schedule changes each rate by its slope, so least squares over the rates give the shift. Around
    a bend or jump at a place that the baseline does not know, rates are left out: one jump is no mean.
    """
    seen, factor = course(m, known)
    total = m.epochs_planned * known.ready[0].samples
    window = float(np.median([sum(event.steps) for event in known.closed] or [0])) * m.batch_size
    allowed = (BEHIND * window + 2 * m.batch_size * m.world_size) / total
    at, wanted = np.array(rates).T
    weights = np.array([event.samples for event in known.progress], np.float64)
    report = float(np.average(weights, weights=weights)) if weights.any() else 0.0
    reach = _reach(m, known) / total
    for k, far in [(k, 0.0) for k in _rough(at, wanted)] + [(k, reach) for k in _jumps(at, wanted, allowed)]:
        weights[np.searchsorted(seen, at[k] - far, side="right") : np.searchsorted(seen, at[k + 1] + far)] = 0.0
    lower, here, upper = (np.interp(seen + offset, at, wanted) for offset in (-allowed, 0.0, allowed))
    slope = (upper - lower) / 2
    squares = float(weights @ slope**2)
    if squares <= FLAT * float(weights.sum()):
        return ""
    behind = -float(weights @ ((factor - here) * slope)) / squares * allowed * total
    most = allowed * total if behind > 0 else AHEAD * window + 2 * max(report, m.batch_size) * m.world_size
    if abs(behind) <= most:
        return ""
    way = "behind" if behind > 0 else "ahead of"
    return f"learning rates are on average {abs(behind):,.0f} samples {way} the baseline's (allowed: {most:,.0f})"


def _reach(m: Metrics, known: Records) -> float:
    """Return the samples by which a rank may apply a rate too early or too late."""
    reports = max(event.samples for event in known.progress) * m.world_size
    windows = max((sum(event.steps) * m.batch_size for event in known.closed), default=0)
    return max(2 * windows, reports) + 2 * m.batch_size * m.world_size
