"""El Che: how many steps each rank runs between two averages, so that all arrive at the same time.

The slowest rank is the anchor: it runs `anchor` steps in a window, a rank that is twice as fast twice as many. Owns the
controller alone: settings, state, and its reactions to measured windows. Knows no ledger, no round, no clock.

Source: the El Che strategy of floDl (first version): adaptive smoothing, anchor tuning, counts, dead zone, clamp_total.
Two of its rules are mended here. The dead zone of 10 % was inert below 10 steps and a permanent barrier wait above: here
the target is kept unrounded and a change below the dead zone is applied once it has persisted for three windows. And the
anchor, which a window of zero cost drove down for ever, is bounded by `min_anchor` on the way down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

ALPHA = (0.1, 0.8)
"""Bounds of the adaptive smoothing factor: jitter is smoothed by the first, a change of speed followed by the second."""
DEAD_ZONE = 0.1
"""Relative change of a count that is applied at once."""
PATIENCE = 3
"""Windows after which a smaller change is applied as well."""


@dataclass(frozen=True)
class ElCheSettings:
    """Settings with the documented defaults."""

    anchor: int = 10
    """Steps of every rank in the first window, and of the slowest rank afterwards until the tuner moves it."""
    min_anchor: int = 0
    """Lower bound of the tuner; 0: the initial anchor."""
    max_anchor: int = 200
    overhead_target: float = 0.10
    """Cost of an average, as a fraction of the window's compute, above which the anchor grows."""
    max_batch_diff: int | None = None
    """Most steps by which a count may exceed the slowest rank's (0: lockstep)."""

    def __post_init__(self) -> None:
        if self.anchor < 1:
            raise ValueError(f"anchor={self.anchor}: a window has at least one step; use anchor=1 or more")
        if self.max_anchor < self.anchor:
            raise ValueError(
                f"max_anchor={self.max_anchor} is below anchor={self.anchor}; raise it or lower the anchor"
            )
        if not 0 <= self.min_anchor <= self.max_anchor:
            raise ValueError(f"min_anchor={self.min_anchor} must lie between 0 and max_anchor={self.max_anchor}")
        if not 0.01 <= self.overhead_target <= 0.5:
            raise ValueError(f"overhead_target={self.overhead_target} must lie between 0.01 and 0.5")
        if self.max_batch_diff is not None and self.max_batch_diff < 0:
            raise ValueError(f"max_batch_diff={self.max_batch_diff} must be 0 or more, or null for no limit")


@dataclass(frozen=True, slots=True)
class ElChe:
    """State of the controller. Tuples are by rank."""

    anchor: int
    counts: tuple[int, ...]
    step_s: tuple[float, ...]
    """Smoothed seconds per step; 0: not measured yet, or the rank is gone."""
    pending: tuple[int, ...]
    """For how many windows a change below the dead zone has been wanted."""


def start(settings: ElCheSettings, size: int) -> ElChe:
    """Equal counts: nothing is known of the ranks' speeds yet."""
    return ElChe(settings.anchor, (settings.anchor,) * size, (0.0,) * size, (0,) * size)


def measure(state: ElChe, steps: tuple[int, ...], busy_s: tuple[float, ...]) -> ElChe:
    """Follow the speeds measured in a window: `steps` trained in `busy_s` seconds by each rank (0 steps: not measured)."""
    smoothed = tuple(
        _smooth(old, busy / n) if n and busy > 0 else old
        for old, n, busy in zip(state.step_s, steps, busy_s, strict=True)
    )
    return replace(state, step_s=smoothed)


def _smooth(old: float, new: float) -> float:
    if old == 0:
        return new
    alpha = min(max(abs(new - old) / old, ALPHA[0]), ALPHA[1])
    return alpha * new + (1 - alpha) * old


def tune(settings: ElCheSettings, state: ElChe, sync_s: float, window_s: float) -> ElChe:
    """Move the anchor so that an average that costs `sync_s` stays below the target share of a window of `window_s`."""
    if sync_s <= 0 or window_s <= 0:
        return state
    overhead, lowest = sync_s / window_s, settings.min_anchor or settings.anchor
    anchor = state.anchor
    if overhead > settings.overhead_target:
        anchor = math.ceil(anchor * overhead / settings.overhead_target)
    elif overhead < settings.overhead_target / 2 and anchor > lowest:
        anchor -= 1
    return replace(state, anchor=min(max(anchor, lowest), settings.max_anchor))


def nudge_down(state: ElChe, factor: float) -> ElChe:
    """Shrink the anchor to `factor` of itself (0.1 to 1), to bring the replicas together more often."""
    return replace(state, anchor=max(1, math.ceil(state.anchor * min(max(factor, 0.1), 1.0))))


def recount(settings: ElCheSettings, state: ElChe, most: int) -> ElChe:
    """Counts from the anchor and the speeds: the slowest rank runs `anchor` steps, the others what fits its time.

    A window holds `most` steps of all ranks together (an epoch's); the anchor does not grow where that binds.
    """
    slow = max(state.step_s)
    if slow == 0:
        return state
    counts, pending = [], []
    for step_s, old, waited in zip(state.step_s, state.counts, state.pending, strict=True):
        new = max(1, round(state.anchor * slow / step_s)) if step_s else state.anchor
        if settings.max_batch_diff is not None:
            new = min(new, state.anchor + settings.max_batch_diff)
        wait = waited + 1 if new != old else 0
        apply = abs(new - old) > DEAD_ZONE * old or wait >= PATIENCE
        counts.append(new if apply else old)
        pending.append(0 if apply else wait)
    whole = sum(counts)
    if whole > most:
        counts = [max(1, count * most // whole) for count in counts]
    anchor = min(state.anchor, max(1, state.anchor * most // whole)) if whole > most else state.anchor
    return replace(state, anchor=anchor, counts=tuple(counts), pending=tuple(pending))


def allot(counts: tuple[int, ...], total: int) -> tuple[int, ...]:
    """`total` steps in proportion to `counts` (largest remainder, the larger count first)."""
    whole = sum(counts)
    shares = [count * total // whole for count in counts]
    order = sorted(range(len(counts)), key=lambda r: (-(counts[r] * total % whole), -counts[r], r))
    for rank in order[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def clamp_total(counts: tuple[int, ...], total: int) -> tuple[int, ...]:
    """Cut `counts` down to sum to `total`, in proportion; unchanged if they sum to less."""
    return counts if sum(counts) <= total else allot(counts, total)


def fit(counts: tuple[int, ...], left: int) -> tuple[int, ...]:
    """Counts of the next window, so that the `left` steps of an epoch fall into windows of equal size.

    Without it the last window of an epoch is what remains: a sliver of a step or two that costs a whole average. Counts
    only shrink, so every bound that they keep is kept.
    """
    windows = -(-left // sum(counts))
    return allot(counts, -(-left // windows)) if windows else counts
