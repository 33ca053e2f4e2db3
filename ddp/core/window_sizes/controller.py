"""El Che: sizes each rank's steps between two averages such that all ranks arrive at the same time.

The slowest rank is the anchor: it does `anchor` steps in a window, a rank that is twice as fast twice as many. Owns the
controller alone: settings, state, and its reactions to measured windows. Knows no ledger, no round, no clock.

Source: the El Che strategy of floDl. Rules and differences: docs/reference/controller.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from ddp.core.messages.events import RoundClosed
from ddp.core.values.frozen import replace, value
from ddp.core.window_sizes.allocation import allocate, rate
from ddp.core.window_sizes.speeds import SMOOTHINGS, Speed, follow

PHASES = (("probe", 0), ("warmup", 1), ("stable", 5), ("mature", 20))
"""(phase, number of measured windows at which it begins)."""
SETTLED = dict(PHASES)["stable"]
LAG = 2
"""Number of windows that are granted before the first one is measured."""
WARMUP_FACTOR = 2
"""In warm-up, measured costs of averages count only above this multiple of the target, as the first averages cost more."""
MEMORY = {"probe": 5, "warmup": 5, "stable": 5, "mature": 9}
"""Number of recent averages whose median cost counts, by phase."""
MARGIN = 1.1
"""Growth goes beyond the target by this factor, so that jitter does not call for more at once."""
QUIET = 3
"""Number of windows below half the target after which the anchor shrinks."""
REST = 1.25
"""Factor above the target at which a shrinking anchor stops."""
BAND, DOMINANCE = 0.15, 1.10
"""Ranks within this fraction of the slowest are as slow; a challenger must be slower than the anchor rank by this
factor."""
DEAD_ZONE, NOTICE, PATIENCE = 0.05, 0.01, 3
"""Fractions of the steps that old counts may lose: beyond the first they are replaced at once; beyond the second after
PATIENCE windows."""
MAX_RATIO = 64.0
"""Largest ratio of measured or hinted speeds that is taken into account."""
MOST = 10**9
"""Upper limit of every setting in steps."""
LARGEST = 1e12
"""Ratios that users give lie between this and its inverse, so that no computation overflows."""


@dataclass(frozen=True)
class ElCheSettings:
    """Settings of the controller, with the documented defaults."""

    anchor: int = 10
    """Steps of every rank in the first window, and of the slowest rank afterwards until the tuner moves it."""
    min_anchor: int = 0
    """Lower bound of the anchor; 0: the initial `anchor`. Only a guard's nudge goes below."""
    max_anchor: int = 200
    """Largest anchor, steps."""
    overhead_target: float = 0.02
    """Target cost of an average, communication and waiting, as a fraction of the window's time; above it windows grow."""
    max_batch_diff: int | None = None
    """Most steps by which a rank may be ahead of the slowest in a window (0: lockstep); null: no limit."""
    smoothing: str = "adaptive"
    """`adaptive`, or `trust`: the mean of the last 5 windows."""
    speed_hint: tuple[float, ...] | None = None
    """Relative speeds of all ranks to begin with; null: equal until they are measured."""
    partition_ratios: tuple[float, ...] | None = None
    """Fixed proportions of the work of all ranks, however unequal; null: in proportion to the measured speeds."""

    def __post_init__(self) -> None:
        for name in ("speed_hint", "partition_ratios"):
            object.__setattr__(self, name, _ratios(name, getattr(self, name)))
        if self.anchor < 1:
            raise ValueError(f"anchor={self.anchor}: a window has at least one step; use anchor=1 or more")
        for name in ("anchor", "max_anchor", "max_batch_diff"):
            if (getattr(self, name) or 0) > MOST:
                raise ValueError(f"{name}={getattr(self, name)} is more steps than there are; use {MOST} or less")
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
        if self.smoothing not in SMOOTHINGS:
            raise ValueError(f"smoothing={self.smoothing!r} is unknown; choose one of {', '.join(SMOOTHINGS)}")

    @property
    def user_set(self) -> bool:
        """Whether the user limits the ratio of steps, so that it does not follow from speeds alone."""
        return self.partition_ratios is not None or self.max_batch_diff is not None


def _ratios(name: str, given: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Return the ratios as a tuple: configuration files contain lists."""
    if given is None:
        return None
    if not given or any(not 1 / LARGEST <= x <= LARGEST for x in given):
        raise ValueError(f"{name}={list(given)} must hold a positive number (1e-12 to 1e12) for each rank, or be null")
    return tuple(float(x) for x in given)


@value(frozen=True)
class ElChe:
    """State of the controller. Tuples are by rank."""

    anchor: int
    """Steps of the slowest rank, as set by the tuner."""
    counts: tuple[int, ...]
    speeds: tuple[Speed, ...]
    most: int
    """Steps of an epoch: the longest window."""
    calibrations: int = 0
    """Windows measured."""
    rank: int | None = None
    """The anchor rank, which stands for the slowest ranks."""
    costs: tuple[float, ...] = ()
    """Seconds that each recent average cost all ranks together, newest last."""
    quiet: int = 0
    """Number of consecutive windows that lost less than half the target."""
    losing: int = 0
    """Number of consecutive windows in which other counts would have been noticeably better."""
    gone: tuple[int, ...] = ()
    """Lost ranks: they have count 0 and are ignored."""

    @property
    def phase(self) -> str:
        """`probe`, `warmup`, `stable` or `mature`."""
        return next(name for name, since in reversed(PHASES) if self.calibrations >= since)

    @property
    def settled(self) -> bool:
        """Whether warm-up is over."""
        return self.calibrations >= SETTLED

    @property
    def fewest(self) -> int:
        """Least steps in a window of a rank that works."""
        return min(n for n in self.counts if n)

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks that are not lost."""
        return tuple([rank for rank in range(len(self.speeds)) if rank not in self.gone])

    @property
    def known(self) -> tuple[float, ...]:
        """Seconds per step by rank; a rank that is not measured counts as the slowest."""
        slowest = max([speed.step_s for speed in self.speeds])
        return tuple([max(speed.step_s or slowest, slowest / MAX_RATIO) for speed in self.speeds])


def start(settings: ElCheSettings, size: int, most: int) -> ElChe:
    """Return the initial state, with equal or hinted counts. Raises ValueError for a hint of wrong length."""
    for name in ("speed_hint", "partition_ratios"):
        given = getattr(settings, name)
        if given is not None and len(given) != size:
            raise ValueError(f"{name}={list(given)} has {len(given)} entries, but there are {size} ranks")
    state = ElChe(max(settings.anchor, settings.min_anchor), (), (Speed(),) * size, max(most, 1))
    return replace(state, counts=_counts(settings, state, step_costs(settings, state), settings.max_batch_diff))


def _counts(settings: ElCheSettings, state: ElChe, costs: tuple[float, ...], lead: int | None) -> tuple[int, ...]:
    """Return the steps of each rank in a window for the anchor and `costs` of a step; 0 for a lost rank."""
    live = state.live
    shortest, most = state.anchor * _slowest(settings, state, costs), max(state.most, len(live))
    if not state.gone:
        return allocate(costs, shortest, most, lead)
    counts = dict(zip(live, allocate(tuple(costs[rank] for rank in live), shortest, most, lead), strict=True))
    return tuple(counts.get(rank, 0) for rank in range(len(costs)))


def step_costs(settings: ElCheSettings, state: ElChe) -> tuple[float, ...]:
    """Return the costs that counts are computed from: inverse fixed ratios, measured seconds per step, or inverse hints."""
    if settings.partition_ratios:
        return tuple(1 / part for part in settings.partition_ratios)
    if not any(speed.step_s for speed in state.speeds):
        hint = settings.speed_hint or (1.0,) * len(state.speeds)
        least = max(hint) / MAX_RATIO
        return tuple(1 / max(x, least) for x in hint)
    return state.known


def _slowest(settings: ElCheSettings, state: ElChe, costs: tuple[float, ...]) -> float:
    """Return the cost of a step that the anchor counts: the anchor rank's; with fixed ratios or a limited lead, the
    slowest's."""
    return max(costs[r] for r in state.live) if settings.user_set or state.rank is None else costs[state.rank]


def weights(settings: ElCheSettings, state: ElChe) -> tuple[float, ...]:
    """Return the exact proportions of the work by rank, which sum to 1; counts are whole steps near them."""
    led = settings.max_batch_diff is not None
    parts = tuple(map(float, state.counts)) if led else _rates(state, step_costs(settings, state))
    whole = sum(parts)
    return tuple([part / whole for part in parts])


def _rates(state: ElChe, costs: tuple[float, ...]) -> tuple[float, ...]:
    """Return the steps per unit of `costs` by rank; 0 for a lost rank."""
    return tuple([0.0 if rank in state.gone else 1 / cost for rank, cost in enumerate(costs)])


def measure(settings: ElCheSettings, state: ElChe, event: RoundClosed) -> ElChe:
    """Update speeds and costs from a measured window, and elect the anchor rank."""
    speeds = tuple(
        Speed() if rank in event.lost else follow(speed, steps, busy, settings.smoothing)
        for rank, (speed, steps, busy) in enumerate(zip(state.speeds, event.steps, event.busy_s, strict=True))
    )
    counts = tuple(0 if rank in event.lost else n for rank, n in enumerate(state.counts))
    calibrated = state.calibrations + any(event.steps)
    state = replace(state, speeds=speeds, counts=counts, calibrations=calibrated, gone=event.lost)
    state = replace(state, costs=(*state.costs, _lost(state, event))[-MEMORY[state.phase] :])
    return replace(state, rank=_elect(state))


def _lost(state: ElChe, event: RoundClosed) -> float:
    """Return the seconds that an average cost: its own time plus the ranks' waiting before it, weighted by speed.

    At most one step's worth of a rank's waiting counts. That much comes from whole steps and jitter, and weighs less in a
    longer window. More comes from counts that do not fit the speeds, which no window length corrects. In windows granted
    before the first measurement no waiting counts."""
    if state.calibrations <= LAG:
        return event.sync_s
    speeds = [
        (1 / speed.step_s, wait)
        for speed, wait, steps in zip(state.speeds, event.wait_s, event.steps, strict=True)
        if steps and speed.step_s
    ]
    if not speeds:
        return event.sync_s
    return event.sync_s + sum(min(wait * v, 1.0) for v, wait in speeds) / sum(v for v, _ in speeds)


def _elect(state: ElChe) -> int | None:
    """Return the lowest of the slowest ranks. The incumbent stays unless clearly outdone, and always during warm-up."""
    step_s = [speed.step_s for speed in state.speeds]
    slowest, incumbent = max(step_s), state.rank
    if incumbent is not None and step_s[incumbent]:
        if not state.settled or slowest <= DOMINANCE * step_s[incumbent]:
            return incumbent
    elif not slowest:
        return None
    return next(rank for rank, cost in enumerate(step_s) if cost >= (1 - BAND) * slowest)


def tune(settings: ElCheSettings, state: ElChe, may_grow: bool = True) -> ElChe:
    """Move the anchor so that the cost of an average stays below the target fraction of a window."""
    if state.rank is None or not state.costs:
        return state
    anchor, costs = state.anchor, step_costs(settings, state)
    slowest = _slowest(settings, state, costs)
    known = state.known if settings.partition_ratios else costs  # measured speeds exist, as there is an anchor rank
    seconds = max([slowest / costs[rank] * known[rank] for rank in state.live])
    wanted = median(state.costs) / (settings.overhead_target * seconds)
    if not state.settled:
        measured = wanted if wanted > WARMUP_FACTOR * anchor else 0.0
        wanted = max(measured, _unfit(settings, state, costs) * anchor / settings.overhead_target)
    lowest = settings.min_anchor or settings.anchor
    if wanted > anchor:
        if may_grow:
            epoch = math.ceil(state.most / sum(slowest / costs[rank] for rank in state.live))
            grown = min(max(min(math.ceil(MARGIN * wanted), 2 * anchor), lowest), settings.max_anchor, epoch)
            anchor = max(anchor, grown)
        return replace(state, anchor=anchor, quiet=0)
    if not state.settled or 2 * wanted >= anchor:
        return replace(state, quiet=0)
    if state.quiet + 1 < QUIET:
        return replace(state, quiet=state.quiet + 1)
    rested = max(math.ceil(REST * wanted), -(-anchor // 2), lowest)
    return replace(state, anchor=min(anchor, rested), quiet=0)


def _unfit(settings: ElCheSettings, state: ElChe, costs: tuple[float, ...]) -> float:
    """Return the fraction of a window in which ranks wait because steps are whole, predicted from speeds and the anchor.

    It is known before any such window was measured, and is not distorted by the expensive first averages."""
    if settings.user_set:
        return 0.0
    return 1 - rate(_counts(settings, state, costs, None), costs) / sum(_rates(state, costs))


def nudge_down(state: ElChe, factor: float) -> ElChe:
    """Shrink the anchor by `factor` (0.1 to 1), to average more often."""
    return replace(state, anchor=max(1, math.ceil(state.anchor * min(max(factor, 0.1), 1.0))), quiet=0)


def recount(settings: ElCheSettings, state: ElChe, before: ElChe) -> ElChe:
    """Set the counts for the anchor and the speeds, unless the present counts do nearly as well and no rank is without."""
    if (counted := all(state.counts[rank] for rank in state.live)) and state.rank is None:
        return state
    costs = step_costs(settings, state)
    new = _counts(settings, state, costs, settings.max_batch_diff)
    loss = 0.0 if new == state.counts else 1 - rate(state.counts, costs) / rate(new, costs)
    losing = state.losing + 1 if loss > NOTICE else 0
    moved = (state.anchor, state.rank, state.gone) != (before.anchor, before.rank, before.gone) or not state.settled
    if not counted or moved or loss > DEAD_ZONE or losing >= PATIENCE:
        return replace(state, counts=new, losing=0)
    return replace(state, losing=losing)
