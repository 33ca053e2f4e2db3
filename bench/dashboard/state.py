"""A run so far: `fold(state, record, at)` is the state after one more record. Pure; a record never fails, whatever it holds.

Everything is bounded: what grows with the run is thinned out. Knows nothing of how it is shown (`bench.dashboard.view`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from bench.dashboard.series import Series, TimeBin, spread
from bench.results.analysis.stream import Trouble
from ddp.core.commands import Abort, Drop, Evaluate, Join, Plan
from ddp.core.events import (
    AverageFailed,
    Evaluated,
    Failed,
    Finished,
    GuardVerdict,
    Lost,
    Memory,
    Progress,
    Ready,
    Resumed,
    RoundClosed,
)
from ddp.process.codec import Record

POINTS = 400
"""Most points of what is kept of epochs, plans and rounds, and most entries of a list."""
MAX_RANK = 1024
T = TypeVar("T")


class Score(NamedTuple):
    """Sums over one epoch, of all ranks."""

    samples: int = 0
    loss: float = 0.0
    """Sum over samples; not a number where one was not finite."""
    lr: float = 0.0
    parts: int = 1
    """Pieces that its evaluation is cut into, and how many are in."""
    evaluated: int = 0
    eval_samples: int = 0
    eval_loss: float = 0.0
    metric: float = 0.0
    seconds: float = 0.0
    """Since launch, at its last one."""
    seen: int = 0
    """Samples trained in the run by then."""

    @property
    def whole(self) -> bool:
        """Whether all of its evaluation is in."""
        return self.evaluated >= self.parts > 0


@dataclass(frozen=True)
class RankView:
    """One rank so far."""

    ready: Ready | None = None
    reported: float = 0.0
    """Its last report of training, on the clock of the records."""
    epoch: int = -1
    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0
    used: float | None = None
    """When memory and processor were measured last, on the clock of the records; and the processor seconds by then."""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    """At last; and the most there was."""
    peak_rss_bytes: int = 0
    finished: bool = False
    lost: float | None = None
    """When it was noticed that the run would go on without it."""


@dataclass(frozen=True)
class PlanInForce:
    """The policy's plan from a moment on."""

    seconds: float
    anchor: int
    counts: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class RoundView:
    """A round that closed."""

    seconds: float
    round: int
    divergence: float | None
    """Largest of the ranks'."""
    sync_ms: float


@dataclass(frozen=True)
class DashboardState:
    """A run so far. Times in seconds since its first record, the launch, where no clock is named."""

    first: float | None = None
    """Of the first record, on the clock of the records; and of the last one."""
    now: float = 0.0
    began: float | None = None
    """When the last rank was ready, or the run was gone on with; on the clock of the records."""
    before: int = 0
    """Samples that were trained before that."""
    samples: int = 0
    ranks: Mapping[int, RankView] = field(default_factory=dict)
    series: Series = field(default_factory=Series)
    epochs: Mapping[int, Score] = field(default_factory=dict)
    epochs_gone: int = 0
    """Whole ones that were thinned out."""
    plan: Plan | None = None
    plans: tuple[PlanInForce, ...] = ()
    rounds: int = 0
    closed: tuple[RoundView, ...] = ()
    verdicts: tuple[tuple[float, GuardVerdict], ...] = ()
    trouble: tuple[tuple[float, Trouble], ...] = ()
    """With its time on the clock of the records."""
    aborted: Abort | None = None
    resumed: Resumed | None = None

    def since(self, at: float) -> float:
        """Seconds since launch."""
        return max(at - (at if self.first is None else self.first), 0.0)


def fold(state: DashboardState, record: Record, at: float) -> DashboardState:
    """The state after `record`, which was written at `at` on the clock of the records."""
    if not math.isfinite(at) or not 0 <= getattr(record, "rank", 0) < MAX_RANK:
        return state
    if len(getattr(record, "counts", ())) > MAX_RANK:  # a plan for ranks that no run has
        return state
    try:
        return _folded(state, record, at)
    except OverflowError:  # numbers that no run has
        return state


def _folded(state: DashboardState, record: Record, at: float) -> DashboardState:
    if isinstance(record, Memory) and state.first is None:
        return state  # time begins with what happened, whichever file is read first
    state = replace(state, first=at if state.first is None else state.first, now=max(at, state.now))
    match record:
        case Ready():
            state = _rank(state, record.rank, ready=record, reported=at)
            return replace(state, began=at if state.resumed is None or state.began is None else state.began)
        case Memory():
            return _used(state, record, at)
        case Resumed():
            there = {number: replace(rank, lost=None, finished=False) for number, rank in state.ranks.items()}
            return replace(state, began=at, before=state.samples, resumed=record, ranks=there)
        case Progress():
            return _trained(state, record, at)
        case Evaluate():
            return _scored(state, record.epoch, parts=record.parts)
        case Evaluated():
            return _evaluated(state, record, at)
        case Plan():
            return _planned(state, record, at)
        case RoundClosed():
            return _closed(state, record, at)
        case GuardVerdict():
            return replace(state, verdicts=(*state.verdicts, (state.since(at), record))[-POINTS:])
        case Finished():
            peak = max(record.peak_rss_bytes, state.ranks.get(record.rank, RankView()).peak_rss_bytes)
            return _rank(state, record.rank, finished=True, peak_rss_bytes=peak)
        case Failed() | Lost() | AverageFailed() | Drop() | Abort() | Join():
            return _troubled(state, record, at)
    return state


def _rank(state: DashboardState, rank: int, **changed: object) -> DashboardState:
    new = replace(state.ranks.get(rank, RankView()), **changed)  # type: ignore[arg-type]
    return replace(state, ranks={**state.ranks, rank: new})


def _used(state: DashboardState, record: Memory, at: float) -> DashboardState:
    known = state.ranks.get(record.rank, RankView())
    peak = max(known.peak_rss_bytes, record.rss_bytes)
    cpu = known.cpu_s if record.cpu_s is None else record.cpu_s
    told = known.used is not None and record.cpu_s is not None and cpu >= known.cpu_s
    start, stop = state.since(at if known.used is None else known.used), state.since(at)
    what = TimeBin(
        rss=record.rss_bytes,
        device=record.device_bytes or 0,
        cpu_s=cpu - known.cpu_s if told else 0.0,
        used_s=stop - start if told else 0.0,
        gpu_s=(record.device_use or 0.0) * (stop - start),
        gpu_used_s=0.0 if record.device_use is None else stop - start,
    )
    state = _rank(state, record.rank, rss_bytes=record.rss_bytes, peak_rss_bytes=peak, used=at, cpu_s=cpu)
    return replace(state, series=spread(state.series, record.rank, start, stop, what))


def _scored(state: DashboardState, epoch: int, **changed: object) -> DashboardState:
    new = state.epochs.get(epoch, Score())._replace(**changed)  # type: ignore[arg-type]
    return _entered(state, epoch, new)


def _entered(state: DashboardState, epoch: int, score: Score, **changed: object) -> DashboardState:
    """With this score; of more epochs than `POINTS`, the older half is thinned out."""
    epochs = {**state.epochs, epoch: score}
    gone = 0
    if len(epochs) > POINTS:
        kept = set(thinned(tuple(sorted(epochs))))
        gone = sum(known.whole and known.samples > 0 for number, known in epochs.items() if number not in kept)
        epochs = {number: known for number, known in epochs.items() if number in kept}
    return replace(state, epochs=epochs, epochs_gone=state.epochs_gone + gone, **changed)  # type: ignore[arg-type]


def _trained(state: DashboardState, record: Progress, at: float) -> DashboardState:
    known = state.ranks.get(record.rank, RankView(reported=at))
    if known.lost is not None:
        return state  # what it says later is not heard
    loss = math.nan if record.loss_sum is None else record.loss_sum
    start, stop = state.since(known.reported), state.since(at)
    what = TimeBin(stop - start, record.steps, record.samples, record.busy_s, loss)
    score = state.epochs.get(record.epoch, Score())
    rank = replace(
        known,
        reported=at,
        epoch=record.epoch,
        steps=known.steps + record.steps,
        samples=known.samples + record.samples,
        busy_s=known.busy_s + record.busy_s,
    )
    samples = state.samples + record.samples
    score = score._replace(
        samples=score.samples + record.samples, loss=score.loss + loss, lr=record.lr, seconds=stop, seen=samples
    )
    return _entered(  # most of the records come here: one new state, not one for each field
        state,
        record.epoch,
        score,
        samples=samples,
        ranks={**state.ranks, record.rank: rank},
        series=spread(state.series, record.rank, start, stop, what),
    )


def _evaluated(state: DashboardState, record: Evaluated, at: float) -> DashboardState:
    score = state.epochs.get(record.epoch, Score())
    return _scored(
        state,
        record.epoch,
        evaluated=score.evaluated + 1,
        eval_samples=score.eval_samples + record.samples,
        eval_loss=score.eval_loss + (math.nan if record.loss_sum is None else record.loss_sum),
        metric=score.metric + (math.nan if record.metric_sum is None else record.metric_sum),
        seconds=state.since(at),
        seen=score.seen or state.samples,
    )


def _planned(state: DashboardState, record: Plan, at: float) -> DashboardState:
    last = state.plan
    state = replace(state, plan=record)
    if last is not None and (last.anchor, last.counts) == (record.anchor, record.counts):
        return state
    point = PlanInForce(state.since(at), record.anchor, record.counts, record.reason)
    return replace(state, plans=thinned((*state.plans, point)))


def _closed(state: DashboardState, record: RoundClosed, at: float) -> DashboardState:
    divergence = max((value for value in record.divergence if math.isfinite(value)), default=None)
    point = RoundView(state.since(at), record.round, divergence, record.sync_s * 1e3)
    return replace(state, rounds=state.rounds + 1, closed=thinned((*state.closed, point)))


def _troubled(state: DashboardState, record: Trouble, at: float) -> DashboardState:
    if isinstance(record, Join) and not any(not isinstance(known, Join) for _, known in state.trouble):
        return state  # the first group; it is no trouble
    said = next((when for when, known in state.trouble if _last_words(known, record)), at)
    state = replace(state, trouble=(*state.trouble, (at, record))[-POINTS:])
    if isinstance(record, Abort):
        return replace(state, aborted=record)
    return _rank(state, record.rank, lost=said) if isinstance(record, Drop) else state


def _last_words(known: Trouble, record: Trouble) -> bool:
    """Whether one is what told that the rank is lost which the other gives up."""
    return isinstance(record, Drop) and isinstance(known, Failed | Lost) and known.rank == record.rank


def thinned(points: tuple[T, ...]) -> tuple[T, ...]:
    """No more than `POINTS`: every second one of the older half goes when there are more."""
    if len(points) <= POINTS:
        return points
    half = POINTS // 2
    return (*points[:half:2], *points[half:])
