"""Windows as the controller measures them, closed one after another."""

from __future__ import annotations

from ddp.core.messages.events import RoundClosed
from ddp.core.window_sizes import controller
from ddp.core.window_sizes.controller import ElChe, ElCheSettings


def window(counts: tuple[int, ...], step_s: list[float], sync_s: float = 0.0) -> RoundClosed:
    busy = tuple(n * s for n, s in zip(counts, step_s, strict=True))
    nothing = (0.0,) * len(counts)
    waits = tuple(max(busy) - each for each in busy)
    return RoundClosed(0.0, 0, counts, busy, sync_s, waits, nothing, (False,) * len(counts))


def turn(settings: ElCheSettings, state: ElChe, step_s: list[float], sync_s: float = 0.0) -> ElChe:
    now = controller.measure(settings, state, window(state.counts, step_s, sync_s))
    return controller.recount(settings, controller.tune(settings, now), state)


def windows(settings: ElCheSettings, step_s: list[float], times: int, sync_s: float = 0.0, most: int = 10_000) -> ElChe:
    state = controller.start(settings, len(step_s), most)
    for _ in range(times):
        state = turn(settings, state, step_s, sync_s)
    return state
