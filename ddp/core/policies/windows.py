"""Windows sized by El Che and watched by a guard: what `cadence` and `async` share.

They differ in how far a rank may run ahead of its count, and that alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddp.core import elche
from ddp.core.commands import Plan
from ddp.core.elche import LARGEST, ElChe, ElCheSettings
from ddp.core.events import GuardVerdict, PolicyEvent, RoundClosed
from ddp.core.guard import GUARDS, Guard, GuardDecision, Report
from ddp.core.values import replace
from ddp.core.world import World

DISPATCHES = ("progressive", "partition")
FEWEST = 4
"""Steps of the slowest rank from which on a window is worth dividing anew on the way."""
REARM = 5
"""Stable verdicts in a row after which windows may grow again."""


@dataclass(frozen=True)
class WindowState:
    """State of a policy with windows."""

    world: World
    elche: ElChe
    plan: Plan
    guard: Any
    """The guard's own state."""
    content: int = REARM
    """Stable verdicts in a row."""
    overshoot: tuple[int, ...] = ()
    """Steps by rank that `async` lets it run ahead."""


@dataclass(frozen=True)
class WindowSettings(ElCheSettings):
    """El Che's settings, those of the guard and those of dispatch."""

    guard: str = "level"
    """`none`, `level` (rising divergence) or `growth` (its rate per step)."""
    divergence_threshold: float = 0.05
    """||own - average|| / ||average|| up to which a rise means nothing to the `level` guard."""
    no_divergence_guard: bool = False
    """Whatever `guard` says, none."""
    dispatch: str = "progressive"
    """`progressive`: the epoch is granted in its order; `partition`: every rank has its own slice of it first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guard not in GUARDS:
            raise ValueError(f"guard={self.guard!r} is unknown; choose one of {', '.join(GUARDS)}")
        if not 0 < self.divergence_threshold <= LARGEST:
            raise ValueError(
                f"divergence_threshold={self.divergence_threshold} must be above 0 and at most {LARGEST:g}; "
                "no_divergence_guard=true for none"
            )
        if self.dispatch not in DISPATCHES:
            raise ValueError(f"dispatch={self.dispatch!r} is unknown; choose one of {', '.join(DISPATCHES)}")

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Windows of `anchor` steps, equal or as hinted, until the first one is measured. ValueError: a hint of wrong
        length."""
        controller = elche.start(self, world.size, world.steps)
        overlap, lookahead = self.freedom(world)
        counts, anchor = controller.counts, controller.anchor
        reason = f"{anchor} steps each until speeds are known"
        plan = Plan(counts, (), overlap, lookahead, in_step=False, anchor=anchor, reason=reason)
        plan = replace(
            plan,
            max_lead=self.max_batch_diff,
            dispatch="fixed" if self.partition_ratios else self.dispatch,
        )
        state = WindowState(world, controller, plan, self._guard.start(), overshoot=self.initial_overshoot(world))
        state = replace(state, plan=self._planned(state, reason))
        return state, state.plan

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan | GuardVerdict, ...]]:
        """Follow the speeds; let the anchor move as far as the guard is content."""
        assert isinstance(event, RoundClosed)
        report = Report(max(event.divergence), sum(event.steps), max(event.steps))
        guard, verdict = self._guard.update(state.guard, report)
        content = state.content + 1 if verdict.kind == "stable" else 0
        measured = elche.measure(self, state.elche, event)
        if verdict.kind == "nudge":
            now, overshoot = elche.nudge_down(measured, verdict.factor), self.initial_overshoot(state.world)
        else:
            now, overshoot = elche.tune(self, measured, may_grow=content >= REARM), state.overshoot
        now = elche.recount(self, now, state.elche)
        if content >= REARM:
            overshoot = self.grown_overshoot(state, event, now)
        after = replace(state, elche=now, guard=guard, content=min(content, REARM), overshoot=overshoot)
        plan = self._planned(after, _reason(now, event))
        said = self._said(event, report, verdict)
        if _alike(plan, state.plan):
            return after, said
        return replace(after, plan=plan), (*said, plan)

    def freedom(self, world: World) -> tuple[bool, int]:
        """Whether ranks train while an average is in flight, and epochs that may be begun before the oldest is complete."""
        raise NotImplementedError

    def ahead(self, state: WindowState) -> tuple[int, ...]:
        """Steps that each rank may run beyond its count."""
        raise NotImplementedError

    def initial_overshoot(self, world: World) -> tuple[int, ...]:
        """By rank, to begin with and after a nudge."""
        return (0,) * world.size

    def grown_overshoot(self, state: WindowState, event: RoundClosed, now: ElChe) -> tuple[int, ...]:
        """By rank, after a window with which the guard is content; `now` has the counts of the next."""
        return state.overshoot

    @property
    def _guard(self) -> Guard:
        return GUARDS["none" if self.no_divergence_guard else self.guard](self.divergence_threshold)

    def _planned(self, state: WindowState, reason: str) -> Plan:
        now, counts = state.elche, state.elche.counts
        fewest = min(counts[rank] for rank in now.live)
        slowest = fewest if self.user_set or now.rank is None else counts[now.rank]
        ahead = self.ahead(state)
        if self.max_batch_diff is not None:
            ahead = tuple(
                max(0, min(more, fewest + self.max_batch_diff - n)) for more, n in zip(ahead, counts, strict=True)
            )
        return replace(
            state.plan,
            counts=counts,
            ahead=ahead,
            anchor=min(now.anchor, slowest),
            weights=elche.weights(self, now),
            phase=now.phase,
            rebalance=self._rebalances(state, counts, ahead),
            reason=reason,
        )

    def _rebalances(self, state: WindowState, counts: tuple[int, ...], ahead: tuple[int, ...]) -> bool:
        """Where all stand still for the last one, work is taken over from a rank that falls behind in a window; in one of a
        few steps there is nothing to take."""
        bound = self.user_set or self.dispatch != "progressive"
        waits = state.world.blocking and not any(ahead)
        return waits and not bound and state.elche.settled and state.elche.fewest >= FEWEST

    def _said(self, event: RoundClosed, report: Report, verdict: GuardDecision) -> tuple[GuardVerdict, ...]:
        if verdict.kind == "stable":
            return ()
        numbers = (report.divergence, verdict.value, verdict.limit, verdict.factor)
        return (GuardVerdict(event.at, event.round, self.guard, verdict.kind, *numbers),)


def _reason(now: ElChe, event: RoundClosed) -> str:
    speeds = "/".join("-" if r in now.gone else f"{1000 * s.step_s:.1f}" for r, s in enumerate(now.speeds))
    return f"window {event.round}, {now.phase}: {speeds} ms per step, average {1000 * event.sync_s:.1f} ms"


def _alike(new: Plan, old: Plan) -> bool:
    """Exact weights move with every measurement: they go along with the counts made of them."""
    return replace(new, weights=old.weights, reason=old.reason) == old
