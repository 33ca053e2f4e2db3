"""Windows sized by El Che: what `cadence` and `async` share. They differ in how far a rank may run ahead."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core import elche
from ddp.core.commands import Plan
from ddp.core.elche import ElChe, ElCheSettings
from ddp.core.events import PolicyEvent, RoundClosed


@dataclass(frozen=True, slots=True)
class WindowState:
    """State of a policy with windows."""

    elche: ElChe
    plan: Plan
    epoch_steps: int


def update(settings: ElCheSettings, state: WindowState, event: PolicyEvent) -> WindowState:
    """Let the controller follow the window; the counts and anchor of `plan` move with it."""
    assert isinstance(event, RoundClosed)
    before = state.elche
    now = elche.measure(before, event.steps, event.busy_s)
    now = elche.tune(settings, now, event.sync_s, max(event.busy_s))
    now = elche.recount(settings, now, state.epoch_steps)
    if (now.counts, now.anchor) == (before.counts, before.anchor):
        return replace(state, elche=now)
    speeds = "/".join(f"{1000 * s:.1f}" for s in now.step_s)
    reason = f"window {event.round}: {speeds} ms per step, average {1000 * event.sync_s:.1f} ms"
    return replace(state, elche=now, plan=replace(state.plan, counts=now.counts, anchor=now.anchor, reason=reason))
