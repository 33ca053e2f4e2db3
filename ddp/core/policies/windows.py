"""Windows: a number of steps of each rank, then an average. A policy combines three independent parts: a controller that
sizes and divides windows (`ddp.core.window_sizes.controller`), a guard (`ddp.core.guard`) and a lead.

Owns how these parts interact. A policy's own file says which parts it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ddp.core.guard import GUARDS, Report
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import GuardVerdict, PolicyEvent, RoundClosed
from ddp.core.settings.world import World
from ddp.core.values.frozen import replace, value
from ddp.core.window_sizes import controller as elche
from ddp.core.window_sizes.controller import LARGEST, ElChe, ElCheSettings

DISPATCHES = ("progressive", "partition")
FEWEST = 4
"""Fewest steps of the slowest rank in a window that is worth rebalancing."""
REARM = 5
"""Consecutive stable verdicts after which windows may grow again."""


@value(frozen=True)
class WindowState:
    """State of a policy with windows."""

    world: World
    elche: ElChe
    plan: Plan
    guard: Any
    """The guard's own state."""
    content: int = REARM
    """Number of consecutive stable verdicts, up to REARM."""
    overshoot: tuple[int, ...] = ()
    """The lead's own state: steps by rank."""
    lr: float = 0.0
    """Learning rate at the last average; 0: not known."""


@dataclass(frozen=True)
class WindowSettings(ElCheSettings):
    """The user's settings of windows in one flat record: of El Che, of the guard, and of the dispatch."""

    guard: str = "level"
    """`none`, `level` (rising divergence) or `growth` (its rate per step)."""
    divergence_threshold: float = 0.05
    """Divergence, ||own - average|| / ||average||, up to which the `level` guard ignores a rise."""
    no_divergence_guard: bool = False
    """Switch the guard off, whatever `guard` says."""
    dispatch: str = "progressive"
    """`progressive`: ranks get the samples in the order of the epoch; `partition`: first those of their own slice of it."""
    every_step: ClassVar[bool] = False

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


class Lead:
    """How far ranks may run ahead of their counts: by default one window where ranks do not block, else not at all (not
    even at the end of an epoch). Tuples are steps by rank."""

    def freedom(self, world: World) -> tuple[bool, int]:
        """Return (whether ranks train while an average is in flight, number of epochs that may begin before the oldest is
        complete)."""
        return not world.blocking, 0 if world.blocking else 1

    def ahead(self, state: WindowState) -> tuple[int, ...]:
        """Return the steps that ranks may run beyond the counts of `state`."""
        return (0,) * state.world.size if state.world.blocking else state.elche.counts

    def initial(self, world: World) -> tuple[int, ...]:
        """Return the lead's initial state, which is also used after a nudge."""
        return (0,) * world.size

    def grown(self, state: WindowState, event: RoundClosed, now: ElChe) -> tuple[int, ...]:
        """Return the lead's state after a window that the guard found stable; `now` has the next window's counts."""
        return state.overshoot


AnchorRule = Callable[[WindowState, RoundClosed], int]
"""(state before a window that was closed, its measurements) -> steps of the slowest rank in the next window."""


@dataclass(frozen=True)
class WindowPlanner:
    """A controller, a guard and a lead in combination."""

    controller: ElCheSettings
    lead: Lead
    guard: str = "none"
    threshold: float = 0.05
    dispatch: str = "progressive"
    rule: AnchorRule | None = None
    """Computes the length of windows; None: the controller's tuner does."""

    @staticmethod
    def of(settings: WindowSettings, lead: Lead) -> WindowPlanner:
        """Return the planner for `settings`."""
        guard = "none" if settings.no_divergence_guard else settings.guard
        return WindowPlanner(settings, lead, guard, settings.divergence_threshold, settings.dispatch)

    def init(self, world: World) -> tuple[WindowState, Plan]:
        """Begin with windows of `anchor` steps, equal or as hinted, until the first one is measured. Raises ValueError for
        a hint of the wrong length."""
        now = elche.start(self.controller, world.size, world.steps)
        overlap, lookahead = self.lead.freedom(world)
        reason = f"{now.anchor} steps each until speeds are known"
        plan = Plan(now.counts, (), overlap, lookahead, in_step=False, anchor=now.anchor, reason=reason)
        dispatch = "fixed" if self.controller.partition_ratios else self.dispatch
        plan = replace(plan, max_lead=self.controller.max_batch_diff, dispatch=dispatch)
        guard = GUARDS[self.guard](self.threshold).start()
        state = WindowState(world, now, plan, guard, overshoot=self.lead.initial(world))
        plan = self.plan(state, reason)
        return replace(state, plan=plan), plan

    def update(self, state: WindowState, event: PolicyEvent) -> tuple[WindowState, tuple[Plan | GuardVerdict, ...]]:
        """Update speeds and move the anchor as far as the guard allows; return a new plan if it differs."""
        report = Report(max(event.divergence), max(event.steps))
        guard, verdict = GUARDS[self.guard](self.threshold).update(state.guard, report)
        content = state.content + 1 if verdict.kind == "stable" else 0
        now = elche.measure(self.controller, state.elche, event)
        overshoot = state.overshoot
        if verdict.kind == "nudge":
            now, overshoot = elche.nudge_down(now, verdict.factor), self.lead.initial(state.world)
        elif self.rule is not None:
            now = replace(now, anchor=self.rule(state, event))
        else:
            now = elche.tune(self.controller, now, may_grow=content >= REARM)
        now = elche.recount(self.controller, now, state.elche)
        if content >= REARM:
            overshoot = self.lead.grown(state, event, now)
        after = replace(state, elche=now, guard=guard, content=min(content, REARM), overshoot=overshoot, lr=event.lr)
        plan = self.plan(after, _reason(now, event))
        records: tuple[GuardVerdict, ...] = ()
        if verdict.kind != "stable":
            figures = (report.divergence, verdict.value, verdict.limit, verdict.factor)
            records = (GuardVerdict(event.at, event.round, self.guard, verdict.kind, *figures),)
        # Exact weights change with every measurement; by themselves they are no reason for a new plan.
        if replace(plan, weights=state.plan.weights, reason=state.plan.reason) == state.plan:
            return after, records
        return replace(after, plan=plan), (*records, plan)

    def plan(self, state: WindowState, reason: str) -> Plan:
        """Return the plan for the counts of `state`."""
        now, counts, controller = state.elche, state.elche.counts, self.controller
        fewest = min([counts[rank] for rank in now.live])
        slowest = fewest if controller.user_set or now.rank is None else counts[now.rank]
        ahead, most = self.lead.ahead(state), controller.max_batch_diff
        if most is not None:
            ahead = tuple(max(0, min(more, fewest + most - n)) for more, n in zip(ahead, counts, strict=True))
        return replace(
            state.plan,
            counts=counts,
            ahead=ahead,
            anchor=min(now.anchor, slowest),
            weights=elche.weights(controller, now),
            phase=now.phase,
            rebalance=self._rebalances(state, ahead),
            reason=reason,
        )

    def _rebalances(self, state: WindowState, ahead: tuple[int, ...]) -> bool:
        """Return whether steps of a window are reassigned from a rank that falls behind. Only where all ranks wait for the
        last one, and not in windows of a few steps, where there is nothing to reassign."""
        bound = self.controller.user_set or self.dispatch != "progressive"
        waits = state.world.blocking and not any(ahead)
        return waits and not bound and state.elche.settled and state.elche.fewest >= FEWEST


def _reason(now: ElChe, event: RoundClosed) -> str:
    speeds = "/".join("-" if r in now.gone else f"{1000 * s.step_s:.1f}" for r, s in enumerate(now.speeds))
    return f"window {event.round}, {now.phase}: {speeds} ms per step, average {1000 * event.sync_s:.1f} ms"
